package advisory

import (
	"context"
	"sync"

	"github.com/pglock/pglock-go/internal/await"
)

// width is how many callers of one process may ask the server for the same key at a time:
// the holder, and one that waits there, so that the lock passes on without a round trip.
// The others wait here, where a waiter costs no connection.
const width = 2

// lines holds back the goroutines of this process that want the same key of the same
// database. It decides nothing: the server does.
type lines struct {
	mu   sync.Mutex
	open map[place]*line // guarded by mu; none without users
}

// place is what a line forms for.
type place struct {
	db  any // a pool or connection, compared by identity
	key Key
}

type line struct {
	slots chan struct{} // Go lets blocked senders in first come, first served
	users int           // guarded by lines.mu
}

// join waits for a slot until ctx is done, and returns what gives it up.
func (l *lines) join(ctx context.Context, at place, width int) (leave func(), err error) {
	l.mu.Lock()
	if l.open == nil {
		l.open = map[place]*line{}
	}
	own := l.open[at]
	if own == nil {
		own = &line{slots: make(chan struct{}, width)}
		l.open[at] = own
	}
	own.users++
	l.mu.Unlock()

	quit := func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if own.users--; own.users == 0 {
			delete(l.open, at)
		}
	}
	select {
	case own.slots <- struct{}{}:
		return func() { <-own.slots; quit() }, nil
	case <-ctx.Done():
		quit()
		return nil, await.Ended(ctx)
	}
}

// join waits for a slot until ctx is done or the call's time-out is over.
func (c *call) join(ctx context.Context, l *lines, at place, width int) (leave func(), err error) {
	bounded := ctx
	if c.cfg.timeout > 0 {
		var cancel context.CancelFunc
		bounded, cancel = context.WithTimeoutCause(ctx, c.cfg.timeout, ErrTimeout)
		defer cancel()
	}
	leave, err = l.join(bounded, at, width)
	switch {
	case err == nil:
		return leave, nil
	case ctx.Err() != nil:
		return nil, c.notAcquired(await.Ended(ctx))
	}
	return nil, c.notAcquired(ErrTimeout)
}
