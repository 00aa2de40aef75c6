package advisory

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglock/pglock-go/internal/errs"
	"github.com/pglock/pglock-go/internal/pgtx"
)

// Session is a lock that a server session holds, on a separate connection. It is safe for
// concurrent use, and its accessors never wait for the network.
//
//	held ──Release──▶ released
//	  │
//	  └──connection or server silent or gone──▶ lost
//
// Both ends are final, and in both the Context is done and the connection is closed.
type Session struct {
	key   Key
	pid   uint32
	conn  *pgx.Conn // used by the watcher, and by runRelease after the watcher has stopped
	leave func()    // lets the next goroutine of this process acquire the lock

	ctx    context.Context //nolint:containedctx // it is the lock's, not a call's
	cancel context.CancelCauseFunc

	stopWatch context.CancelFunc
	watchDone chan struct{} // closed when the watcher has stopped

	releaseOnce sync.Once
	releaseDone chan struct{} // closed when runRelease has returned
	releaseErr  error         // set before releaseDone is closed
}

// newSession returns the lock on conn and starts its watcher.
func newSession(ctx context.Context, key Key, conn *pgx.Conn, pid uint32, keepAlive time.Duration, leave func()) *Session {
	s := &Session{
		key: key, pid: pid, conn: conn, leave: sync.OnceFunc(leave),
		watchDone: make(chan struct{}), releaseDone: make(chan struct{}),
	}
	detached := context.WithoutCancel(ctx)
	s.ctx, s.cancel = context.WithCancelCause(detached)
	watch, stop := context.WithCancel(detached)
	s.stopWatch = stop
	go s.runWatch(watch, keepAlive)
	return s
}

// Context returns a context that is done when the lock is released or lost. Its cause then wraps
// ErrReleased or ErrLost. It has the values of the context that was passed to Acquire.
//
// Unlike a lease's context, it may be done later than the next grant: a server that ends the
// session releases the lock at once, before the holder notices. If holders must never overlap, use
// a lease and its token.
func (s *Session) Context() context.Context { return s.ctx }

// Err returns nil while the lock is held. Afterwards it returns an error that wraps ErrReleased, or
// one that wraps ErrLost and says why.
func (s *Session) Err() error {
	if s.ctx.Err() == nil {
		return nil
	}
	return context.Cause(s.ctx)
}

// Release releases the lock and closes the connection. It returns nil if the lock was held until
// now, an error that wraps ErrLost if it was lost before, and another error if the server
// did not confirm the release; then the lock ends with its connection. Release may be called
// again, also concurrently, and returns the same result.
//
// ctx bounds only the wait of this call. The release continues without it, for a bounded time.
func (s *Session) Release(ctx context.Context) error {
	s.releaseOnce.Do(func() { go s.runRelease(context.WithoutCancel(ctx)) })
	select { // if both are ready, either is right: a call whose ctx is done may be repeated
	case <-s.releaseDone:
		return s.releaseErr
	case <-ctx.Done():
		return errs.Errorf("advisory: release %s: not done yet: %w", s.key.describe(), errs.ContextErr(ctx))
	}
}

// runRelease releases the lock, and is called once.
func (s *Session) runRelease(ctx context.Context) {
	defer close(s.releaseDone)
	// First, since the lock may be granted to others after it. No effect if the lock was lost.
	s.cancel(ErrReleased)
	s.stopWatch()
	<-s.watchDone // from here on the connection is ours
	if lost := s.Err(); errors.Is(lost, ErrLost) {
		s.releaseErr = lost
		return
	}
	s.releaseErr = pgtx.CleanUp(ctx, s.unlock)
	s.close(ctx)
}

func (s *Session) unlock(ctx context.Context) error {
	q := s.key.calling("pg_advisory_unlock")
	var held bool
	if err := s.conn.QueryRow(ctx, q.SQL, q.Args...).Scan(&held); err != nil {
		return errs.Errorf("advisory: release %s: the lock ends with its connection: %w", s.key.describe(), err)
	}
	if !held {
		return s.lost(errNotHeld)
	}
	return nil
}

// lost returns the error for a lock that ended before it was released.
func (s *Session) lost(cause error) error {
	return errs.Mark(errs.Errorf("advisory: lock %s of server process %d lost: %w", s.key.describe(), s.pid, cause), ErrLost)
}

// close closes the connection, and with it what is left of the lock.
func (s *Session) close(ctx context.Context) {
	_ = pgtx.CleanUp(ctx, s.conn.Close) // the connection is gone either way
	s.leave()
}
