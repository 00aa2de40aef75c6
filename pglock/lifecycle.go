package pglock

import (
	"context"
	"sync"
	"time"

	"github.com/pglock/pglock-go/internal/backoff"
	"github.com/pglock/pglock-go/internal/timing"
	"github.com/pglock/pglock-go/pglock/internal/link"
)

// lifecycle is the life of a client, which bounds its work and which Close ends.
type lifecycle struct {
	// life bounds every statement. It ends at the end of Close.
	life    context.Context //nolint:containedctx // of the client, not of a call
	endLife context.CancelCauseFunc

	// cleanup bounds work in the background. It ends with life, or timing.StatementBound after
	// Close has begun, because a server that is unavailable must not keep a process from ending.
	cleanup    context.Context //nolint:containedctx // of the client, not of a call
	endCleanup context.CancelFunc

	// closing is closed when Close begins, so that waiters give up.
	closing  chan struct{}
	closed   chan struct{} // closed when Close is done
	closeErr error         // set before closed is closed

	mu       sync.Mutex // guards the two flags
	isClosed bool       // no new calls
	draining bool       // no new releases either

	// calls counts the goroutines that work for callers. It may be increased only by a caller that
	// holds mu and sees one of the flags unset, or is inside a counted call.
	calls sync.WaitGroup
}

func newLifecycle(life context.Context, endLife context.CancelCauseFunc) lifecycle {
	cleanup, endCleanup := context.WithCancel(life)
	return lifecycle{
		life: life, endLife: endLife, cleanup: cleanup, endCleanup: endCleanup,
		closing: make(chan struct{}), closed: make(chan struct{}),
	}
}

// beginClose refuses new calls, and reports whether this is the first Close.
func (c *lifecycle) beginClose() (first bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	first = !c.isClosed
	c.isClosed = true
	return first
}

// drain refuses new releases too, and waits for the counted calls.
func (c *lifecycle) drain() {
	c.mu.Lock()
	c.draining = true
	c.mu.Unlock()
	c.calls.Wait()
}

func (c *lifecycle) hasClosed() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.isClosed
}

// beginCall counts a call unless the client is closed, and endCall must follow if it succeeds.
func (c *lifecycle) beginCall() error { return c.countCall(&c.isClosed) }

// beginRelease is beginCall for releases, which Close itself waits for.
func (c *lifecycle) beginRelease() error { return c.countCall(&c.draining) }

// countCall counts a call unless refused is set, which mu guards.
func (c *lifecycle) countCall(refused *bool) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if *refused {
		return ErrClosed
	}
	c.calls.Add(1)
	return nil
}

func (c *lifecycle) endCall() { c.calls.Done() }

// background runs fn on another goroutine, bounded by cleanup and by bound. The caller must be
// inside a counted call, because Close waits for fn.
func (c *lifecycle) background(bound time.Duration, fn func(ctx context.Context)) {
	c.calls.Go(func() {
		ctx, cancel := context.WithTimeout(c.cleanup, bound)
		defer cancel()
		fn(ctx)
	})
}

// retry repeats op, which must be safe to repeat, until it succeeds, fails permanently, or ctx
// ends. It does not repeat a failure after quit, which may be nil, is closed. Each attempt has its
// own time limit.
func retry(ctx context.Context, quit <-chan struct{}, op func(ctx context.Context) error) error {
	p := backoff.Policy{Transient: link.Transient, Pauses: newPause(), Try: timing.StatementBound / 2, Quit: quit}
	return backoff.Retry(ctx, p, op)
}

// signal sends to a channel with a buffer of one, unless a signal is pending.
func signal(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

func newPause() backoff.Backoff {
	return backoff.Backoff{First: timing.FirstPause, Max: timing.MaxPause}
}
