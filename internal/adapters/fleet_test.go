package adapters_test

import (
	"bytes"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgtype/zeronull"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/internal/locktest"
	"github.com/pglock/pglock-go/internal/pgtest"
)

// fleet is several processes of schedulers.
type fleet struct {
	t      *testing.T
	pool   *pgxpool.Pool
	url    string
	period time.Duration
}

// start starts the process of a scheduler whose clock is ahead by skew.
func (f fleet) start(kind string, skew time.Duration) *exec.Cmd {
	f.t.Helper()
	var log bytes.Buffer
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), schedulerVariable+"="+kind, urlVariable+"="+f.url, periodVariable+"="+f.period.String(), skewVariable+"="+skew.String())
	cmd.Stdout, cmd.Stderr = &log, &log
	if err := cmd.Start(); err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // killed
		if log.Len() > 0 {
			f.t.Logf("process %d: %s", cmd.Process.Pid, log.String())
		}
	})
	return cmd
}

func newFleet(t *testing.T, period time.Duration) fleet {
	t.Helper()
	url := pgtest.Database(t)
	locktest.Client(t, url) // creates the tables
	pool := pgtest.PoolOn(t, url)
	for _, table := range []string{"begun", "runs"} {
		locktest.Exec(t, pool, "CREATE TABLE "+table+" (tick timestamptz, machine int)")
	}
	locktest.Exec(t, pool, "CREATE TABLE reports (tick timestamptz, machine int, outcome text)")
	return fleet{t, pool, url, period}
}

// TestChaosEveryTickOnceInAFleet has three processes whose clocks differ. One of them is killed
// within a tick, which another completes. From the moment when all processes run, each tick is completed once. The long form
// has sixty ticks of a second.
func TestChaosEveryTickOnceInAFleet(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"gocron", "cron"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			period, count := 200*time.Millisecond, 8
			if os.Getenv("PGLOCK_CHAOS") != "" {
				period, count = time.Second, 60
			}
			f := newFleet(t, period)
			machines := map[int]*exec.Cmd{}
			for _, skew := range []time.Duration{0, -period * 5 / 4, period * 3 / 2} {
				cmd := f.start(kind, skew)
				machines[cmd.Process.Pid] = cmd
			}
			const there = "SELECT count(DISTINCT machine) FROM reports"
			pgtest.Eventually(t, "all are there", func() bool { return locktest.Scan[int](t, f.pool, there) == len(machines) })
			began := locktest.Scan[time.Time](t, f.pool, "SELECT max(first) FROM (SELECT min(tick) AS first FROM reports GROUP BY machine) m")

			var last time.Time // of the ticks that were run
			// those are ticks that were run since then, at least n and without a gap. The ticks that wait for a
			// killed one are run in any order.
			those := func(n int) bool {
				var runs int
				locktest.OK(t, f.pool.QueryRow(t.Context(), "SELECT count(DISTINCT tick), max(tick) FROM runs WHERE tick >= $1", began).Scan(&runs, (*zeronull.Timestamptz)(&last)))
				return runs >= n && runs == int(last.Sub(began)/period)+1
			}
			t.Cleanup(func() {
				if t.Failed() {
					t.Log(locktest.Scan[string](t, f.pool, "SELECT coalesce(string_agg(tick || ' ' || machine || ' ' || outcome, E'\\n' ORDER BY tick), '') FROM reports"))
				}
			})
			pgtest.Eventually(t, "a third of the ticks", func() bool { return those(count / 3) })
			// Kill the process that runs a tick.
			var victim int
			pgtest.Eventually(t, "one is running a tick", func() bool {
				victim = locktest.Scan[int](t, f.pool, "SELECT coalesce(max(machine), 0) FROM begun b WHERE tick >= $1 AND NOT EXISTS (SELECT FROM runs r WHERE r.tick = b.tick)", began)
				return victim != 0
			})
			if err := machines[victim].Process.Kill(); err != nil {
				t.Fatal(err)
			}
			pgtest.Eventually(t, "the rest of the ticks", func() bool { return those(count) })
			want := int(last.Sub(began)/period) + 1
			// The process may have been killed after its run, before that was recorded: then another repeats it.
			runs := locktest.Scan[int](t, f.pool, `SELECT count(*) FROM runs r WHERE tick BETWEEN $1 AND $2 AND NOT (machine = $3
				AND NOT EXISTS (SELECT FROM reports p WHERE p.tick = r.tick AND p.machine = r.machine)
				AND EXISTS (SELECT FROM runs o WHERE o.tick = r.tick AND o.machine <> r.machine))`, began, last, victim)
			if runs != want {
				t.Errorf("%d runs of %d ticks", runs, want)
			}
			if n := locktest.Scan[int](t, f.pool, "SELECT count(*) FROM reports WHERE outcome NOT IN ('done', 'by another')"); n != 0 {
				t.Errorf("%d reports with other outcomes: %s", n, locktest.Scan[string](t, f.pool, "SELECT string_agg(outcome, E'\\n') FROM reports WHERE outcome NOT IN ('done', 'by another')"))
			}
			after := locktest.Scan[int](t, f.pool, "SELECT count(DISTINCT machine) FROM runs WHERE machine <> $1", victim)
			if after == 0 {
				t.Error("no machine took over")
			}
			t.Logf("%d ticks of %v, each once; process %d was killed in one; %d others ran some", want, period, victim, after)
		})
	}
}

// TestP42_WithoutALockEachMachineRunsTheTick is the control.
func TestP42_WithoutALockEachMachineRunsTheTick(t *testing.T) {
	t.Parallel()
	f := newFleet(t, 200*time.Millisecond)
	for range 2 {
		f.start("gocron without a lock", 0)
	}
	pgtest.Eventually(t, "both run ticks", func() bool { return locktest.Scan[int](t, f.pool, "SELECT count(DISTINCT machine) FROM runs") == 2 })
}
