package runner

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/advisory"
	"github.com/pglock/pglock-go/internal/errs"
	"github.com/pglock/pglock-go/internal/pgtx"
	"github.com/pglock/pglock-go/pglock"
)

const (
	defaultInterval = 5 * time.Second // between two reports
	firstReport     = time.Second     // a shorter wait is not reported
)

// wait acquires the locks. Meanwhile it reports who holds them, and so does its error, a
// *pglock.WaitError.
//
// A waiter holds no snapshot: CREATE INDEX CONCURRENTLY, run by the holder, waits for all snapshots
// that are older than itself. A lock that is granted after the wait has ended is released by
// all.acquire.
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
		// Both can be ready at once. Either may win: one report more or less does no harm.
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
