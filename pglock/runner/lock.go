package runner

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/advisory"
	"github.com/pglock/pglock-go/internal/errs"
	"github.com/pglock/pglock-go/internal/pgtx"
	"github.com/pglock/pglock-go/pglock"
)

// lock excludes other runs: it is an advisory lock of a session, or a lease.
type lock interface {
	acquire(ctx context.Context) (heldLock, error) // the first is meaningless with an error
	holder(ctx context.Context) holder
}

// heldLock is an *advisory.Session or a *pglock.Lease.
type heldLock interface {
	Err() error // nil while it is held
	Release(ctx context.Context) error
}

// holder describes the holder of a lock for messages. It is empty if the server does not say, if
// the lock is free, and if the holder is the caller itself, which was granted the lock just now.
type holder struct {
	name string
	held time.Duration // 0 if it is not known
}

// locks are the run's own lock and, with WithKey, that of another program. Each run acquires its
// own lock first, and the other program acquires only one, so they can't deadlock.
type locks []lock

// open makes the locks without acquiring them, on the call's own pool, which a lease does not need.
func (c *config) open(own *pgxpool.Pool) (all locks) {
	if c.client != nil {
		all = append(all, leaseLock{c})
	} else {
		all = append(all, sessionLock{c, advisory.NewKey(keyNamespace, c.name), own})
	}
	if c.key != nil {
		all = append(all, sessionLock{c, advisory.KeyFromInt64(*c.key), own})
	}
	return all
}

func (all locks) acquire(ctx context.Context) (held heldLocks, err error) {
	for _, l := range all {
		h, err := l.acquire(ctx)
		if err != nil {
			return nil, errs.Join(err, release(ctx, held))
		}
		held = append(held, h)
	}
	return held, nil
}

// holder returns the holder of the first lock that has another one than the caller.
func (all locks) holder(ctx context.Context) (h holder) {
	for _, l := range all {
		if h = l.holder(ctx); h.name != "" {
			break
		}
	}
	return h
}

// heldLocks are lost as soon as one of them is.
type heldLocks []heldLock

func (all heldLocks) Err() error {
	for _, h := range all {
		if err := h.Err(); err != nil {
			return err
		}
	}
	return nil
}

func (all heldLocks) Release(ctx context.Context) (err error) {
	for _, h := range slices.Backward(all) {
		err = errs.Join(err, h.Release(ctx))
	}
	return err
}

type leaseLock struct{ *config }

func (l leaseLock) acquire(ctx context.Context) (heldLock, error) {
	return l.client.Acquire(ctx, l.name, append([]pglock.LeaseOption{pglock.WithHolder(l.caller)}, l.lease...)...)
}

// holder measures the time by this machine's clock, which suffices for a message.
func (l leaseLock) holder(ctx context.Context) holder {
	info, err := l.client.Get(ctx, l.name)
	if err != nil || !info.Held() || info.Holder == l.caller {
		return holder{}
	}
	return holder{info.Holder, max(time.Since(info.AcquiredAt), 0)}
}

// sessionLock is an advisory lock of a session. It acquires and holds the lock on one connection of
// the run's own pool, and looks up its holder on another. An advisory lock has no room for its
// holder's name, so the application_name of the connections has it.
type sessionLock struct {
	*config
	key  advisory.Key
	pool *pgxpool.Pool
}

// keyNamespace keeps the keys of runners apart from those of applications.
const keyNamespace = "pglock runner"

// sessionName returns the name of the holder as PostgreSQL keeps it in application_name.
func (c *config) sessionName() string { return c.caller[:min(len(c.caller), 63)] }

// ownPool opens a pool with the configuration of the caller's, so that a pool that is small or busy
// can't block a run: a run has at most two locks, one migration, and one look at the tables at a
// time.
func (c *config) ownPool(ctx context.Context, pool *pgxpool.Pool) (*pgxpool.Pool, error) {
	own := pool.Config()
	own.MaxConns, own.MinConns, own.MinIdleConns, own.MaxConnIdleTime = 4, 0, 0, time.Minute
	own.ConnConfig.RuntimeParams["application_name"] = c.sessionName()
	opened, err := pgxpool.NewWithConfig(ctx, own)
	if err != nil {
		return nil, errs.Errorf("runner: %w", err)
	}
	return opened, nil
}

func (l sessionLock) acquire(ctx context.Context) (heldLock, error) {
	return advisory.Acquire(ctx, l.pool, l.key)
}

// holder reads again if the session has no name: the server reads the list of locks and that of
// sessions one after the other, so a session that began in between is only in the first. A session
// without a name at the second read is another program's, or the role may not see the name.
func (l sessionLock) holder(ctx context.Context) (h holder) {
	for range 2 {
		sessions, err := advisory.Inspect(ctx, l.pool)
		if err != nil {
			return h
		}
		for _, s := range sessions {
			switch {
			case s.Key != l.key || !s.Granted:
			case s.ApplicationName == l.sessionName():
				return holder{}
			case s.ApplicationName != "":
				return holder{name: fmt.Sprintf("%s (server process %d)", s.ApplicationName, s.PID)}
			default:
				h.name = fmt.Sprintf("server process %d", s.PID)
			}
		}
	}
	return h
}

const (
	defaultInterval = 5 * time.Second // between two reports
	firstReport     = time.Second     // a shorter wait is not reported
)

// wait acquires the locks and meanwhile reports who holds them, as does its error, a
// *pglock.WaitError. A lock that is granted after the wait has ended is released by all.acquire.
func (c *config) wait(ctx context.Context, own *pgxpool.Pool) (heldLocks, error) {
	all, start := c.open(own), time.Now()
	bounded, cancel := context.WithCancel(ctx)
	defer cancel()
	if c.timeout > 0 {
		bounded, cancel = context.WithTimeoutCause(ctx, c.timeout, pglock.ErrTimeout)
		defer cancel()
	}
	var reports sync.WaitGroup
	if c.logger.Enabled(ctx, slog.LevelInfo) { // otherwise the queries for the holder would be in vain
		reports.Go(func() { c.runReports(bounded, all) })
	}
	held, err := all.acquire(bounded)
	cancel()
	reports.Wait()
	end := &pglock.WaitError{Name: c.name, Waited: time.Since(start)}
	var session *advisory.NotAcquiredError
	switch {
	case err == nil:
		if c.granted != nil {
			c.granted(held)
		}
		return held, nil
	case errors.As(err, &session):
		end.Cause = session.Cause
	case !errors.As(err, &end) || end.Last != nil:
		return nil, err // that of a lease names the holder, unless the wait ended before its first answer
	}
	_ = pgtx.CleanUp(ctx, func(ctx context.Context) error { // nil
		if h := all.holder(ctx); h.name != "" {
			end.Last = errors.New("held by " + errs.OneLine(h.String()))
		}
		return nil
	})
	return nil, end
}

// runReports logs at each interval who holds the locks, until the wait ends.
func (c *config) runReports(ctx context.Context, all locks) {
	start := time.Now()
	for pause := min(firstReport, c.interval); ; pause = c.interval {
		// Both cases may be ready, in any order, because one report more or less does no harm.
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return
		}
		if h := all.holder(ctx); h.name != "" && ctx.Err() == nil {
			waited := time.Since(start)
			c.logger.InfoContext(ctx, fmt.Sprintf("pglock: waiting %v for %s", waited.Round(time.Second), h),
				"lock", c.name, "holder", h.name, "held", h.held, "waited", waited)
		}
	}
}

// String names the holder, and says how long it has had the lock if that is known.
func (h holder) String() string {
	if h.held == 0 {
		return h.name
	}
	return fmt.Sprintf("%s, which has held the lock for %v", h.name, h.held.Round(time.Second))
}

// release releases the locks, also if ctx has ended.
func release(ctx context.Context, held heldLocks) error {
	return pgtx.CleanUp(ctx, held.Release)
}
