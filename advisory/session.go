package advisory

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/jackc/pgx/v5"

	"github.com/pglock/pglock-go/internal/await"
)

// errNotHeld: the server says that the session does not hold the lock that it should.
var errNotHeld = errors.New("advisory: the session did not hold the lock")

// Session is a lock that a server's session holds, on a connection of its own. It is safe
// for concurrent use, and none of its accessors waits for the network.
//
//	held ──Release──▶ released
//	  │
//	  └──connection or server silent or gone──▶ lost
//
// Both ends are final. In both the Context is done and the connection closed.
type Session struct {
	key    Key
	shared bool
	pid    uint32
	conn   *pgx.Conn // the watcher's; Release has it when the watcher has stopped
	leave  func()    // gives up the place in the line

	ctx    context.Context //nolint:containedctx // it is the lock's, not a call's
	cancel context.CancelCauseFunc

	stop    context.CancelFunc // stops the watcher
	stopped chan struct{}      // closed when it has
	once    sync.Once          // of releasing
	done    chan struct{}      // closed when that is over
	outcome error              // of releasing, set before done is closed
}

// LostError tells that a session lock ended before it was released, and why.
type LostError struct {
	Key   Key
	PID   uint32 // of the server's process that held it
	Cause error
}

func (e *LostError) Error() string {
	return fmt.Sprintf("%v: advisory lock %v of server process %d: %v", ErrLost, e.Key, e.PID, e.Cause)
}

// Unwrap makes errors.Is find ErrLost and the cause.
func (e *LostError) Unwrap() []error { return []error{ErrLost, e.Cause} }

// newSession has the lock on conn watched from now on.
func newSession(ctx context.Context, c *call, conn *pgx.Conn, pid uint32, cfg sessionConfig, leave func()) *Session {
	s := &Session{
		key: c.keys[0], shared: c.shared, pid: pid, conn: conn, leave: sync.OnceFunc(leave),
		stopped: make(chan struct{}), done: make(chan struct{}),
	}
	detached := context.WithoutCancel(ctx)
	s.ctx, s.cancel = context.WithCancelCause(detached)
	watch, stop := context.WithCancel(detached)
	s.stop = stop
	go s.runWatch(watch, cfg.notice)
	return s
}

// Key returns the key that is locked.
func (s *Session) Key() Key { return s.key }

// PID returns the number of the server's process that holds the lock, as in pg_locks.
func (s *Session) PID() uint32 { return s.pid }

// Context returns a context that is done when the lock is released or lost; its cause
// then wraps ErrReleased or ErrLost. It has the values of the context that was given to
// Acquire. Unlike a lease's it can't end before the server gives the lock to somebody else:
// a server that ends the session frees the lock at once, and the news must travel.
// What must never overlap needs a lease and its token.
func (s *Session) Context() context.Context { return s.ctx }

// Done returns the channel that is closed when Context is done.
func (s *Session) Done() <-chan struct{} { return s.ctx.Done() }

// Err returns nil while the lock is held, and then a *LostError, or an error that wraps
// ErrReleased.
func (s *Session) Err() error {
	if s.ctx.Err() == nil {
		return nil
	}
	return context.Cause(s.ctx)
}

// Release gives the lock up and closes the connection. It may be called again, also while
// the first call runs, and returns what that returned: nil if the lock was held until now;
// a *LostError (errors.Is ErrLost) if it was lost before; another error if the server
// did not confirm, in which case the lock ends with its connection.
//
// ctx bounds the waiting of this call. The work goes on without it, bounded by itself.
func (s *Session) Release(ctx context.Context) error {
	s.once.Do(func() { go s.runRelease(context.WithoutCancel(ctx)) })
	select {
	case <-s.done:
		return s.outcome
	case <-ctx.Done():
		return fmt.Errorf("advisory: release of %v: still under way: %w", s.key, await.Ended(ctx))
	}
}

// runRelease is Release, once.
func (s *Session) runRelease(ctx context.Context) {
	defer close(s.done)
	s.cancel(ErrReleased) // first: after it the lock may be somebody else's. No effect if it was lost.
	s.stop()
	<-s.stopped
	if lost := s.Err(); errors.Is(lost, ErrLost) {
		s.outcome = lost
		return
	}
	s.outcome = await.CleanUp(ctx, s.unlock)
	s.close(ctx)
}

func (s *Session) unlock(ctx context.Context) error {
	function := "pg_advisory_unlock"
	if s.shared {
		function += "_shared"
	}
	q := s.key.calling(function)
	var held bool
	if err := s.conn.QueryRow(ctx, q.sql, q.args...).Scan(&held); err != nil {
		return fmt.Errorf("advisory: release of %v, which ends with its connection now: %w", s.key, err)
	}
	if !held {
		return &LostError{Key: s.key, PID: s.pid, Cause: errNotHeld}
	}
	return nil
}

// lose ends the lock as lost, unless it has ended.
func (s *Session) lose(ctx context.Context, cause error) {
	s.cancel(&LostError{Key: s.key, PID: s.pid, Cause: cause})
	s.close(ctx)
}

// close ends the connection, and with it what is left of the lock, and gives up the
// place in the line.
func (s *Session) close(ctx context.Context) {
	_ = await.CleanUp(ctx, s.conn.Close) // it is gone either way
	s.leave()
}
