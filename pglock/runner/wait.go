package runner

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/pglock/pglock-go/advisory"
	"github.com/pglock/pglock-go/internal/errs"
	"github.com/pglock/pglock-go/internal/pgtx"
	"github.com/pglock/pglock-go/pglock"
)

const (
	defaultInterval = 5 * time.Second // between two reports
	firstReport     = time.Second     // a shorter wait is not reported
	holderTimeout   = 5 * time.Second // bounds the query for the holder
)

// wait acquires the locks. Meanwhile it reports who holds them, and so does its error.
//
// A waiter holds no snapshot: CREATE INDEX CONCURRENTLY, run by the holder, waits for all snapshots
// that are older than itself. A lock that is granted after the wait has ended is released by
// all.acquire.
func wait(ctx context.Context, all locks, cfg *config) (heldLocks, error) {
	start := time.Now()
	bounded, cancel := ctx, func() {}
	if cfg.timeout > 0 {
		bounded, cancel = context.WithTimeoutCause(ctx, cfg.timeout, pglock.ErrTimeout)
	}
	defer cancel()
	stopReports := reportWait(bounded, all, cfg)
	held, err := all.acquire(bounded)
	stopReports()
	switch {
	case err == nil:
		if cfg.granted != nil {
			cfg.granted(held)
		}
		return held, nil
	case !errors.Is(err, pglock.ErrNotAcquired):
		return nil, err
	}
	ctx, cancel = context.WithTimeout(context.WithoutCancel(ctx), holderTimeout)
	defer cancel()
	h := all.holder(ctx)
	return nil, &WaitError{Lock: cfg.name, Holder: h.name, Held: h.held, Waited: time.Since(start), Cause: err}
}

// reportWait logs at each interval who holds the locks. The function it returns stops the reports,
// and returns when none is running.
func reportWait(ctx context.Context, all locks, cfg *config) (stop func()) {
	if !cfg.logger.Enabled(ctx, slog.LevelInfo) {
		return func() {} // the queries for the holder would be in vain
	}
	ctx, cancel := context.WithCancel(ctx)
	var reports sync.WaitGroup
	reports.Go(func() { runReports(ctx, all, cfg) })
	return func() { cancel(); reports.Wait() }
}

func runReports(ctx context.Context, all locks, cfg *config) {
	start := time.Now()
	for pause := min(firstReport, cfg.interval); ; pause = cfg.interval {
		// Both can be ready at once. Either may win: one report more or less does no harm.
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return
		}
		if h := all.holder(ctx); h.name != "" && ctx.Err() == nil {
			waited := time.Since(start)
			cfg.logger.InfoContext(ctx, fmt.Sprintf("pglock: waiting %v for %s", waited.Round(time.Second), h),
				"lock", cfg.name, "holder", h.name, "held", h.held, "waited", waited)
		}
	}
}

// String names the holder, and says how long it has had the lock if that is known.
func (h holder) String() string {
	switch {
	case h.name == "":
		return "an unknown holder"
	case h.held == 0:
		return h.name
	}
	return fmt.Sprintf("%s, which has held the lock for %v", h.name, h.held.Round(time.Second))
}

// WaitError reports that a wait ended without the lock, and who held it then. errors.Is finds
// pglock.ErrNotAcquired and what ended the wait: pglock.ErrTimeout, context.Canceled,
// context.DeadlineExceeded, or the context's own cause.
type WaitError struct {
	Lock   string
	Holder string        // empty if it is not known
	Held   time.Duration // how long the holder has had the lease; 0 for an advisory lock
	Waited time.Duration
	Cause  error
}

func (e *WaitError) Error() string {
	return fmt.Sprintf("runner: acquire %q: held by %s: gave up after %v: %s",
		e.Lock, errs.OneLine(holder{e.Holder, e.Held}.String()), e.Waited.Round(time.Millisecond), errs.Reason(endOfWait(e.Cause)))
}

// endOfWait returns what ended the wait that err reports, without what WaitError says itself.
func endOfWait(err error) error {
	var lease *pglock.WaitError
	var session *advisory.NotAcquiredError
	switch {
	case errors.As(err, &lease):
		return lease.Cause
	case errors.As(err, &session) && session.Cause != nil:
		return session.Cause
	}
	return err
}

// Unwrap makes errors.Is find pglock.ErrNotAcquired and the cause.
func (e *WaitError) Unwrap() []error { return []error{pglock.ErrNotAcquired, e.Cause} }

// release releases the locks, also if ctx has ended.
func release(ctx context.Context, held heldLocks) error {
	return pgtx.CleanUp(ctx, held.Release)
}
