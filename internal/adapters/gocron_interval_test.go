package adapters_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-co-op/gocron/v2"

	"github.com/pglock/pglock-go/internal/locktest"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/schedule"
	"github.com/pglock/pglock-go/pglock/schedule/gocronlock"
)

// TestAJobThatDoesNotFitTheGrid: two schedulers that started at different times call Lock for each
// tick of a job, as gocron does. With one locker per scheduler, a job that is due every 4 s runs
// twice, and a warning is logged. With its own locker it runs once.
func TestAJobThatDoesNotFitTheGrid(t *testing.T) {
	t.Parallel()
	const count = 4
	type locker = *gocronlock.Locker[gocron.Lock]
	grid := func(d time.Duration) func(*pglock.Client, ...schedule.Option) (locker, error) {
		return func(c *pglock.Client, opts ...schedule.Option) (locker, error) {
			return gocronlock.NewLocker[gocron.Lock](c, d, opts...)
		}
	}
	own := func(d time.Duration) func(*pglock.Client, ...schedule.Option) (locker, error) {
		return func(c *pglock.Client, opts ...schedule.Option) (locker, error) {
			return gocronlock.NewJobLocker[gocron.Lock](c, "report", d, opts...)
		}
	}
	for name, c := range map[string]struct {
		locker   func(*pglock.Client, ...schedule.Option) (locker, error)
		start    time.Duration // of the first scheduler, after a full minute
		apart    time.Duration
		interval time.Duration
		runs     int
		warned   string // empty for none
	}{
		"grid of 1s, every 4s":              {grid(time.Second), 300 * time.Millisecond, 1500 * time.Millisecond, 4 * time.Second, 2 * count, "every 4s, 300ms off"},
		"locker of its own, every 4s":       {own(4 * time.Second), 300 * time.Millisecond, 1500 * time.Millisecond, 4 * time.Second, count, ""},
		"grid of 1s, cron every 5s":         {grid(time.Second), 20 * time.Millisecond, 30 * time.Millisecond, 5 * time.Second, count, ""},
		"grid of 1s, cron, a timer early":   {grid(time.Second), -20 * time.Millisecond, 40 * time.Millisecond, 5 * time.Second, count, ""},
		"grid of 1s, every 1s":              {grid(time.Second), 300 * time.Millisecond, 400 * time.Millisecond, time.Second, count, ""},
		"grid of a minute, every 20s":       {grid(time.Minute), 100 * time.Millisecond, time.Second, 20 * time.Second, 2, "more often"},
		"grid of a minute, cron every hour": {grid(time.Minute), 50 * time.Millisecond, 20 * time.Millisecond, time.Hour, count, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := pgtest.Database(t)
			var now atomic.Pointer[time.Time]
			logged := make(chan slog.Record, 10*count)
			var schedulers []locker
			for range 2 {
				l, err := c.locker(locktest.Client(t, url), schedule.WithClock(func() time.Time { return *now.Load() }), schedule.WithLogger(slog.New(locktest.Records(logged))))
				if err != nil {
					t.Fatal(err)
				}
				schedulers = append(schedulers, l)
			}
			runs := 0
			for i := range count {
				for j, l := range schedulers {
					at := lastHour.Add(-24 * time.Hour).Add(c.start + time.Duration(i)*c.interval + time.Duration(j)*c.apart)
					now.Store(&at)
					lock, err := l.Lock(t.Context(), "report")
					switch {
					case err == nil:
						runs++
						if err := lock.Unlock(t.Context()); err != nil {
							t.Error(err)
						}
					case !errors.Is(err, schedule.ErrDone):
						t.Errorf("Lock: %v", err)
					}
				}
			}
			if runs != c.runs {
				t.Errorf("%d runs, want %d", runs, c.runs)
			}
			close(logged)
			var warnings []string
			for r := range logged {
				if r.Level >= slog.LevelWarn {
					warnings = append(warnings, locktest.Attr[string](r, "problem"))
				}
			}
			switch {
			case c.warned == "" && len(warnings) > 0:
				t.Errorf("warnings: %q", warnings)
			case c.warned != "" && (len(warnings) != 2 || !strings.Contains(strings.Join(warnings, "\n"), c.warned)):
				t.Errorf("warnings: %q, want one of each scheduler", warnings)
			}
		})
	}
}

// TestGocronJobWithItsOwnInterval runs gocron: two schedulers that start at different times. In the
// control, with one grid for the scheduler, both run the job.
func TestGocronJobWithItsOwnInterval(t *testing.T) {
	t.Parallel()
	const interval = time.Second
	for name, own := range map[string]bool{"locker of its own": true, "control, a finer grid": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := pgtest.Database(t)
			locktest.Client(t, url) // creates the tables
			pool := pgtest.PoolOn(t, url)
			locktest.Exec(t, pool, "CREATE TABLE runs (tick timestamptz, machine int)")
			const doubled = "SELECT count(*) FROM (SELECT FROM runs GROUP BY date_trunc('second', tick) HAVING count(*) > 1) d"
			begin := time.Now().Truncate(interval).Add(2*interval + 300*time.Millisecond)
			for machine := range 2 {
				client := locktest.Client(t, url)
				locker, err := gocronlock.NewLocker[gocron.Lock](client, interval/4)
				if own {
					locker, err = gocronlock.NewJobLocker[gocron.Lock](client, "report", interval)
				}
				if err != nil {
					t.Fatal(err)
				}
				s := newScheduler(t)
				if _, err := s.NewJob(gocron.DurationJob(interval), gocron.NewTask(locker.Task(func(ctx context.Context, l *pglock.Lease) error {
					_, err := pool.Exec(ctx, "INSERT INTO runs SELECT (labels->>'tick')::timestamptz, $1 FROM pglock.distributed_locks WHERE token = $2", machine, int64(l.Token()))
					return err
				})), gocron.WithDistributedJobLocker(locker),
					gocron.WithStartAt(gocron.WithStartDateTime(begin.Add(time.Duration(machine)*375*time.Millisecond)))); err != nil {
					t.Fatal(err)
				}
				s.Start()
			}
			if !own {
				pgtest.Eventually(t, locktest.Patience, "seconds in which both ran it", func() bool { return locktest.Scan[int](t, pool, doubled) >= 2 })
				return
			}
			pgtest.Eventually(t, locktest.Patience, "four runs", func() bool { return locktest.Scan[int](t, pool, "SELECT count(*) FROM runs") >= 4 })
			if n := locktest.Scan[int](t, pool, doubled); n != 0 {
				t.Errorf("in %d seconds the job ran twice", n)
			}
		})
	}
}

func TestAJobLockerRefusesASecondJob(t *testing.T) {
	t.Parallel()
	client := locktest.Client(t, pgtest.Database(t))
	logged := make(chan slog.Record, 4)
	locker, err := gocronlock.NewJobLocker[gocron.Lock](client, "report", time.Hour, schedule.WithLogger(slog.New(locktest.Records(logged))))
	if err != nil {
		t.Fatal(err)
	}
	lock, err := locker.Lock(t.Context(), "main.report")
	if err != nil {
		t.Fatal(err)
	}
	if k, err := client.Get(t.Context(), "report"); err != nil || !k.Held() {
		t.Errorf("the lock of the job's name: %+v, %v", k, err)
	}
	if _, err := locker.Lock(t.Context(), "main.other"); !errors.Is(err, pglock.ErrInvalidOption) {
		t.Errorf("another job: %v", err)
	}
	if r := <-logged; r.Level != slog.LevelWarn {
		t.Errorf("logged %v", r)
	}
	if err := lock.Unlock(t.Context()); err != nil {
		t.Error(err)
	}
	if _, err := gocronlock.NewJobLocker[gocron.Lock](client, "", time.Hour); !errors.Is(err, pglock.ErrInvalidName) {
		t.Errorf("no name: %v", err)
	}
	if _, err := gocronlock.NewJobLocker[gocron.Lock](client, "report", 0); !errors.Is(err, pglock.ErrInvalidOption) {
		t.Errorf("no interval: %v", err)
	}
}
