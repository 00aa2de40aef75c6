package schedule_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/fencing"
	"github.com/pglock/pglock-go/internal/locktest"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/schedule"
)

// killer ends the sessions that are about to send a statement of a run's end: the one that raises the
// mark, or the commit after it.
type killer struct {
	t         *testing.T
	admin     *pgxpool.Pool
	statement string
	armed     atomic.Bool
	kills     atomic.Int32 // left
	killed    func()       // called after each one
}

// TraceQueryStart implements pgx.QueryTracer.
func (k *killer) TraceQueryStart(ctx context.Context, conn *pgx.Conn, q pgx.TraceQueryStartData) context.Context {
	if !k.armed.Load() || !strings.Contains(q.SQL, k.statement) || k.kills.Add(-1) < 0 {
		return ctx
	}
	pid := conn.PgConn().PID()
	locktest.Exec(k.t, k.admin, "SELECT pg_terminate_backend($1)", pid)
	pgtest.Eventually(k.t, locktest.Patience, "the session has ended", func() bool {
		return locktest.Scan[bool](k.t, k.admin, "SELECT NOT EXISTS (SELECT FROM pg_stat_activity WHERE pid = $1)", pid)
	})
	if k.killed != nil {
		k.killed()
	}
	return ctx
}

// TraceQueryEnd implements pgx.QueryTracer.
func (*killer) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// killed returns the job of a machine whose sessions the killer ends.
func (f fleet) killed(k *killer, opts ...schedule.Option) *schedule.Job {
	f.t.Helper()
	k.t, k.admin = f.t, f.pool
	pool := pgtest.Pool(f.t, func(c *pgxpool.Config) { c.ConnConfig.Tracer = k })
	return f.jobOf(locktest.ClientOn(f.t, pool, pglock.WithSchema(f.schema), pglock.WithLogger(nil)), opts...)
}

// TestP61_AKilledSessionDoesNotRepeatATick: the sessions that record a tick end. The tick is recorded
// all the same, and logged, and no other machine runs it.
func TestP61_AKilledSessionDoesNotRepeatATick(t *testing.T) {
	t.Parallel()
	for name, k := range map[string]*killer{
		"at the mark": {statement: "advance"}, "at the commit": {statement: "commit"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFleet(t)
			logged := make(chan slog.Record, 10)
			job := f.killed(k, schedule.WithTTL(locktest.Patience), schedule.WithLogger(slog.New(locktest.Records(logged))))
			tick, runs := time.Now(), 0
			run := func(context.Context, *pglock.Lease) error {
				runs++
				k.armed.Store(true)
				return nil
			}
			k.kills.Store(2)
			if err := job.Once(t.Context(), tick, run); err != nil {
				t.Errorf("the run: %v", err)
			}
			if err := f.job().Once(t.Context(), tick, run); !errors.Is(err, schedule.ErrDone) || runs != 1 {
				t.Errorf("another machine: %v, %d runs", err, runs)
			}
			if r := locktest.Receive(t, logged); r.Level != slog.LevelWarn || locktest.Error(r) == nil || len(logged) != 0 {
				t.Errorf("logged %v and %d more lines", r, len(logged))
			}
		})
	}
}

// TestP61_ALostReplyIsASuccess: the commit of the first try has taken effect.
func TestP61_ALostReplyIsASuccess(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	tick := time.Now()
	err := f.job().Once(t.Context(), tick, func(ctx context.Context, _ *pglock.Lease) error {
		return pgx.BeginFunc(ctx, f.pool, func(tx pgx.Tx) error { // the mark that the first try has set
			return fencing.Advance(ctx, tx, "last tick: report", fencing.Token(tick.UnixMicro()), fencing.WithSchema(f.schema))
		})
	})
	if err != nil {
		t.Errorf("the run: %v", err)
	}
	if err := f.job().Once(t.Context(), tick, nothing); !errors.Is(err, schedule.ErrDone) {
		t.Errorf("again: %v", err)
	}
}

// TestP61_RecordingEndsWithTheLease: a machine that can't record its tick tries until its lease is
// lost, and no longer. Then another machine runs the tick.
func TestP61_RecordingEndsWithTheLease(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	const tries = 3
	k := &killer{statement: "advance"}
	k.kills.Store(1 << 30)
	k.killed = func() {
		if k.kills.Load() == 1<<30-tries {
			f.expire() // the next renewal finds it
		}
	}
	tick := time.Now()
	job := f.killed(k, schedule.WithTTL(15*time.Second), schedule.WithLogger(nil))
	err := job.Once(t.Context(), tick, func(context.Context, *pglock.Lease) error { k.armed.Store(true); return nil })
	if n := 1<<30 - k.kills.Load(); !errors.Is(err, schedule.ErrLost) || n < tries {
		t.Errorf("%v after %d tries", err, n)
	}
	if err := f.job().Once(t.Context(), tick, nothing); err != nil {
		t.Errorf("another machine: %v", err)
	}
}
