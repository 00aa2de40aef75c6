package schedule_test

import (
	"context"
	"errors"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/schedule"
)

// TestChaosEveryTickOnceAlthoughClocksDiffer has three machines. One of them dies half-way. The
// long form of the test has sixty ticks of a second.
func TestChaosEveryTickOnceAlthoughClocksDiffer(t *testing.T) {
	t.Parallel()
	period, count := 50*time.Millisecond, 20
	if os.Getenv("PGLOCK_CHAOS") != "" {
		period, count = time.Second, 60
	}
	f := newFleet(t)
	base := time.Now().Truncate(period).Add(-period)
	ok(t, f.job().Once(t.Context(), base, nothing))
	var dead atomic.Bool
	var machines sync.WaitGroup
	defer machines.Wait()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	for i, skew := range []time.Duration{-3 * period / 2, 0, 7 * period / 3} {
		alive, die := context.WithCancel(ctx)
		clock := func() time.Time { return time.Now().Add(skew) }
		runs := 0
		job := f.job(schedule.WithClock(clock), schedule.WithTTL(3*time.Second), schedule.WithWait(pgtest.Patience), schedule.WithReport(func(tick time.Time, err error) {
			if err != nil {
				t.Errorf("machine %d, %v: %v", i, tick, err)
			}
		}))
		machines.Go(func() {
			defer die()
			err := job.Run(alive, schedule.Every(period), func(ctx context.Context, l *pglock.Lease) error {
				if runs++; runs == count/3 && dead.CompareAndSwap(false, true) {
					die() // the first machine to come here dies within a tick, before it has written anything
				}
				tick, err := f.tickOf(ctx)
				if err != nil {
					return err
				}
				return f.note(func() time.Time { return tick }, i)(ctx, l)
			})
			if !errors.Is(err, context.Canceled) {
				t.Errorf("machine %d ended with %v", i, err)
			}
		})
	}
	pgtest.Eventually(t, "enough ticks", func() bool { return f.ran().runs >= count })
	cancel()
	machines.Wait()
	got := f.ran()
	if there := int(got.last.Sub(base) / period); got.runs != got.distinct || got.distinct != there {
		t.Errorf("%d runs of %d ticks, of %d that there were", got.runs, got.distinct, there)
	}
	if got.machines < 2 {
		t.Errorf("%d machines ran ticks: no machine took over", got.machines)
	}
	t.Logf("%d ticks of %v, each once, by %d machines", got.runs, period, got.machines)
}

// tickOf reads the tick that is running from the label of its lease.
func (f fleet) tickOf(ctx context.Context) (tick time.Time, err error) {
	err = f.pool.QueryRow(ctx, "SELECT (labels->>'tick')::timestamptz FROM "+f.table("distributed_locks")+" WHERE holder IS NOT NULL").Scan(&tick)
	return tick, err
}

type tally struct {
	runs, distinct, machines int
	last                     time.Time
}

func (f fleet) ran() (got tally) {
	f.t.Helper()
	rows, err := f.pool.Query(f.t.Context(), "SELECT tick, machine FROM "+f.table("journal")+" ORDER BY tick")
	ok(f.t, err)
	seen, machines := map[time.Time]bool{}, map[int]bool{}
	var tick time.Time
	var machine int
	if _, err := pgx.ForEachRow(rows, []any{&tick, &machine}, func() error {
		got.last = tick
		got.runs++
		seen[tick.UTC()], machines[machine] = true, true
		return nil
	}); err != nil {
		f.t.Fatal(err)
	}
	got.distinct, got.machines = len(seen), len(machines)
	return got
}
