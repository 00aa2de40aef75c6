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
	pgtest.Eventually(k.t, "the session has ended", func() bool {
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
			job := f.killed(k, schedule.WithTTL(pgtest.Patience), schedule.WithLogger(slog.New(locktest.Records(logged))))
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

// TestARotationDoesNotRepeatATick: the sessions end during a run, and the logins are rejected for a while.
// The tick is recorded all the same, and no other machine runs it. Run begins its ticks after a rotation.
func TestARotationDoesNotRepeatATick(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	var logins pgtest.Logins
	client := locktest.ClientOn(t, pgtest.Pool(t, logins.Watch), pglock.WithSchema(f.schema), pglock.WithLogger(nil))
	job := f.jobOf(client, schedule.WithTTL(pgtest.Patience), schedule.WithLogger(nil))
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	rotated := func(what string, run func() error) {
		t.Helper()
		logins.Rejected.Store(0)
		go func() { ended <- run() }()
		pgtest.Eventually(t, what+": two logins are rejected", func() bool { return logins.Rejected.Load() > 1 })
		logins.Rejecting.Store(false)
	}
	tick := time.Now()
	rotated("recording", func() error {
		return job.Once(ctx, tick, func(context.Context, *pglock.Lease) error { logins.Reject(t, f.pool); return nil })
	})
	if err := locktest.Receive(t, ended); err != nil {
		t.Errorf("the run: %v", err)
	}
	if err := f.job().Once(ctx, tick, nothing); !errors.Is(err, schedule.ErrDone) {
		t.Errorf("another machine: %v", err)
	}
	logins.Reject(t, f.pool)
	ran := make(chan struct{}, 100)
	rotated("Run", func() error {
		return job.Run(ctx, schedule.Every(time.Second), func(context.Context, *pglock.Lease) error { ran <- struct{}{}; return nil })
	})
	locktest.Receive(t, ran)
	stop()
	if err := locktest.Receive(t, ended); !errors.Is(err, context.Canceled) {
		t.Errorf("Run returned %v", err)
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
	if n := 1<<30 - k.kills.Load(); !errors.Is(err, pglock.ErrLost) || n < tries {
		t.Errorf("%v after %d tries", err, n)
	}
	if err := f.job().Once(t.Context(), tick, nothing); err != nil {
		t.Errorf("another machine: %v", err)
	}
}

// TestAMarkInTheFutureIsNoticed: the clocks were a day ahead when a tick was recorded. Until an
// operator deletes the mark, no tick runs, and each is a failure: none of them passes for done. In the
// control the mark is that of a machine whose clock is half a minute ahead.
func TestAMarkInTheFutureIsNoticed(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	logged := make(chan slog.Record, 10)
	job := f.job(schedule.WithLogger(slog.New(locktest.Records(logged))))
	mark := func(ahead time.Duration) {
		t.Helper()
		locktest.Exec(t, f.pool, "DELETE FROM "+f.table("fencing_high_water"))
		locktest.Exec(t, f.pool, "INSERT INTO "+f.table("fencing_high_water")+" (resource, token) VALUES ('last tick: report', $1)", time.Now().Add(ahead).UnixMicro())
	}
	minutely := schedule.Every(time.Minute)
	mark(30 * time.Second)
	if err := job.RunDue(t.Context(), minutely, nothing); !errors.Is(err, schedule.ErrDone) {
		t.Errorf("control: %v", err)
	}
	if r := locktest.Receive(t, logged); r.Level != slog.LevelDebug {
		t.Errorf("control: logged %v", r)
	}
	mark(24 * time.Hour)
	err := job.RunDue(t.Context(), minutely, nothing)
	if !errors.Is(err, schedule.ErrClock) || errors.Is(err, schedule.ErrDone) || !strings.Contains(err.Error(), `"last tick: report"`) || !strings.Contains(err.Error(), f.schema+".fencing_high_water") {
		t.Errorf("a tick: %v", err)
	}
	if r := locktest.Receive(t, logged); r.Level != slog.LevelWarn || !errors.Is(locktest.Error(r), schedule.ErrClock) {
		t.Errorf("a tick: logged %v", r)
	}
	if err := job.OncePer(t.Context(), time.Hour, nothing); !errors.Is(err, schedule.ErrClock) {
		t.Errorf("once per hour: %v", err)
	}
	locktest.Exec(t, f.pool, "DELETE FROM "+f.table("fencing_high_water")+" WHERE resource = 'last tick: report'")
	if err := job.RunDue(t.Context(), minutely, nothing); err != nil {
		t.Errorf("after the remedy: %v", err)
	}
}

// TestRunsDoNotJoin: the function of a tick runs the job again, on a client whose leases join. In the
// control another job of that client runs.
func TestRunsDoNotJoin(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	client := f.client(pglock.WithJoin())
	tick, runs := time.Now(), 0
	other, err := schedule.New(client, "another report")
	ok(t, err)
	err = f.jobOf(client).Once(t.Context(), tick, func(ctx context.Context, l *pglock.Lease) error {
		runs++
		err := f.jobOf(client).Once(ctx, tick, func(context.Context, *pglock.Lease) error { runs++; return nil })
		if !errors.Is(err, pglock.ErrHeldByCaller) || l.Err() != nil {
			t.Errorf("inside: %v, and the lease of the run: %v", err, l.Err())
		}
		return other.Once(ctx, tick, nothing)
	})
	if err != nil || runs != 1 {
		t.Errorf("%v, the tick ran %d times", err, runs)
	}
}

// TestTheNextTickOutlivesPruning: the database knows when a job is late that no process runs any more, also if
// its interval is longer than the retention. The row of a job without a next tick is pruned.
func TestTheNextTickOutlivesPruning(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	client := f.client()
	run, err := f.jobOf(client).BeginDue(t.Context(), schedule.Every(time.Hour))
	ok(t, err)
	ok(t, run.End(t.Context()))
	other, err := schedule.New(client, "another")
	ok(t, err)
	ok(t, other.Once(t.Context(), run.Tick(), nothing))
	_, err = client.Prune(t.Context(), 0)
	ok(t, err)
	next := locktest.Scan[map[string]*string](t, f.pool, "SELECT json_object_agg(job, next_tick) FROM "+f.table("schedules"))
	want := run.Tick().Add(time.Hour).UTC().Format(time.RFC3339)
	if next["report"] == nil || *next["report"] != want || next["another"] != nil {
		t.Errorf("next ticks %v, want %s", next, want)
	}
	if _, err := client.Get(t.Context(), "another"); !errors.Is(err, pglock.ErrNotFound) {
		t.Errorf("the row of a job without a next tick: %v", err)
	}
}
