package pgtx_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglock/pglock-go/internal/errs"
	"github.com/pglock/pglock-go/internal/pgtx"
)

// otherDriverError is like the errors of database/sql drivers other than pgx's.
type otherDriverError struct{ error }

func (otherDriverError) SQLState() string { return "55P03" }

func TestSQLState(t *testing.T) {
	t.Parallel()
	for want, err := range map[string]error{
		"":      errors.New("not the server's"),
		"57014": fmt.Errorf("wrapped: %w", &pgconn.PgError{Code: "57014"}),
		"55P03": fmt.Errorf("wrapped: %w", otherDriverError{errors.New("lock timeout")}),
	} {
		if got := pgtx.SQLState(err); got != want {
			t.Errorf("%v: %q, want %q", err, got, want)
		}
	}
	if got := pgtx.SQLState(nil); got != "" {
		t.Errorf("nil: %q", got)
	}
}

func TestLockTimeoutIsTheEarlierBound(t *testing.T) {
	t.Parallel()
	const minute = time.Minute
	now := time.Now()
	for name, tc := range map[string]struct {
		deadline, timeout, want time.Duration // 0: none
	}{
		"no bound":       {0, 0, 0},
		"deadline":       {minute, 0, minute},
		"timeout":        {0, minute, minute},
		"deadline first": {minute, 2 * minute, minute},
		"timeout first":  {2 * minute, minute, minute},
		"both passed":    {-minute, -minute, time.Millisecond},
	} {
		ctx, at := t.Context(), time.Time{}
		if tc.deadline != 0 {
			var cancel context.CancelFunc
			ctx, cancel = context.WithDeadline(ctx, now.Add(tc.deadline))
			defer cancel()
		}
		if tc.timeout != 0 {
			at = now.Add(tc.timeout)
		}
		if got := pgtx.LockTimeout(ctx, at); got > tc.want || got < tc.want-30*time.Second {
			t.Errorf("%s: %v, want %v", name, got, tc.want)
		}
	}
}

func TestMillisecondsRoundUp(t *testing.T) {
	t.Parallel()
	for d, want := range map[time.Duration]int64{
		0: math.MaxInt32, 1: 1, time.Millisecond: 1, time.Millisecond + 1: 2, time.Second: 1000,
		100 * 365 * 24 * time.Hour: math.MaxInt32,
	} {
		if got := pgtx.Milliseconds(d); got != want {
			t.Errorf("%v: %d, want %d", d, got, want)
		}
	}
}

// dueContext has a deadline, and is not done when that has passed.
type dueContext struct {
	context.Context
	at time.Time
}

func (c dueContext) Deadline() (time.Time, bool) { return c.at, true }

func TestWaitCause(t *testing.T) {
	t.Parallel()
	boom := errors.New("boom")
	canceled, cancel := context.WithCancelCause(t.Context())
	cancel(boom)
	now := time.Now()
	near, far := dueContext{t.Context(), now.Add(pgtx.CancelSoon.Deadline / 2)}, dueContext{t.Context(), now.Add(time.Hour)}
	state := func(code string) error { return &pgconn.PgError{Code: code} }
	byHand := state("57014")
	for name, tc := range map[string]struct {
		ctx       context.Context
		err       error
		timeoutAt time.Time
		want      error // nil: err did not end a wait
	}{
		"deadlock":                    {t.Context(), state("40P01"), time.Time{}, errs.ErrDeadlock},
		"deadlock, canceled":          {canceled, state("40P01"), time.Time{}, errs.ErrDeadlock},
		"canceled":                    {canceled, state("57014"), time.Time{}, context.Canceled},
		"canceled, cause":             {canceled, errors.New("any"), time.Time{}, boom},
		"lock_timeout":                {t.Context(), state("55P03"), time.Time{}, errs.ErrTimeout},
		"lock_timeout, near deadline": {near, state("55P03"), time.Time{}, context.DeadlineExceeded},
		"lock_timeout, both":          {near, state("55P03"), now, errs.ErrTimeout},
		"lock_timeout, far deadline":  {far, state("55P03"), time.Time{}, errs.ErrTimeout},
		"pg_cancel_backend":           {t.Context(), byHand, time.Time{}, byHand},
		"another error":               {t.Context(), state("42P01"), time.Time{}, nil},
	} {
		if got := pgtx.WaitCause(tc.ctx, tc.err, tc.timeoutAt); !errors.Is(got, tc.want) {
			t.Errorf("%s: %v, want %v", name, got, tc.want)
		}
	}
}

func TestUnusable(t *testing.T) {
	t.Parallel()
	for want, all := range map[bool][]error{
		true:  {pgx.ErrTxClosed, &pgconn.PgError{Code: "25P01"}, &pgconn.PgError{Code: "25P02"}},
		false: {nil, errors.New("any"), &pgconn.PgError{Code: "25P03"}},
	} {
		for _, err := range all {
			if got := pgtx.Unusable(err); got != want {
				t.Errorf("%v: %v", err, got)
			}
		}
	}
}
