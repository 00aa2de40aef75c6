//go:build linux

package adapters_test

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/internal/locktest"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/pglock"
)

//go:embed testdata/clients/fleet.sql
var clientFleetSQL string

// clientWorkerVariable makes the test binary a worker of a mixed fleet: its value has the
// database's URL, the name of the worker and the mode, one a line.
const clientWorkerVariable = "PGLOCK_TEST_CLIENT_WORKER"

// fleetMode is what the workers leave out.
type fleetMode string

const (
	protectedFleet fleetMode = "protected"
	unlockedFleet  fleetMode = "unlocked" // acquires nothing, and writes without a guard
	bargingFleet   fleetMode = "barging"  // the workers in Go ignore the queue
)

const (
	fleetTTL   = shortTTL * time.Second
	shortFleet = 5 * time.Second
	longFleet  = 2 * time.Minute
	// A worker that a fault or the machine has stopped may be overtaken until it is back.
	recovery = fleetTTL + 5*time.Second
)

// runClientWorker takes turns at two locks until the process is killed.
func runClientWorker(settings string) error {
	ctx := context.Background()
	part := strings.Split(settings, "\n")
	url, worker, mode := part[0], part[1], fleetMode(part[2])
	pool, err := pgxpool.New(ctx, url)
	if err != nil {
		return err
	}
	opts := []pglock.Option{pglock.WithHolder(worker), pglock.WithTTL(fleetTTL), pglock.WithLogger(nil)}
	if mode == bargingFleet {
		opts = append(opts, pglock.WithBarging())
	}
	client, err := pglock.Open(ctx, pool, opts...)
	if err != nil {
		return err
	}
	for {
		name := []string{"a", "b"}[rand.IntN(2)]
		work := func(ctx context.Context, l *pglock.Lease) error { return fleetTurn(ctx, pool, l, name, worker) }
		if mode == unlockedFleet {
			err = work(ctx, nil)
		} else {
			err = client.Do(ctx, name, work)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			<-time.After(100 * time.Millisecond)
		}
	}
}

// fleetTurn is what a worker does under the lock; in the control without one, l is nil.
func fleetTurn(ctx context.Context, pool *pgxpool.Pool, l *pglock.Lease, name, worker string) error {
	var token int64
	if l != nil {
		token = int64(l.Token())
	}
	began := uptime() + 0.01 // which is rounded down
	for range 1 + rand.IntN(4) {
		seen := began
		for range 1 + rand.IntN(10) { // so that a suspension finds it here too
			now := uptime()
			if err := ctx.Err(); err != nil {
				return err
			}
			seen = max(now, began)
			<-time.After(10 * time.Millisecond)
		}
		if _, err := pool.Exec(ctx, `INSERT INTO intervals VALUES ($1, $2, $3, 'go', $4, $5)
			ON CONFLICT (name, token, worker, began) DO UPDATE SET seen = excluded.seen`, name, token, worker, began, seen); err != nil {
			return err
		}
		if err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			if l != nil {
				if err := l.Guard(ctx, tx); err != nil {
					return err
				}
			}
			var balance int64
			if err := tx.QueryRow(ctx, "SELECT balance FROM accounts WHERE name = $1", name).Scan(&balance); err != nil {
				return err
			}
			<-time.After(rand.N(50 * time.Millisecond))
			_, err := tx.Exec(ctx, "UPDATE accounts SET balance = $2 WHERE name = $1", name, balance+1)
			_, err2 := tx.Exec(ctx, "INSERT INTO entries (name, token, kind) VALUES ($1, $2, 'go')", name, token)
			return errors.Join(err, err2)
		}); err != nil {
			return err
		}
	}
	return nil
}

// uptime returns the seconds of a clock that all processes of the system share, in hundredths.
func uptime() (seconds float64) {
	text, _ := os.ReadFile("/proc/uptime")
	_, _ = fmt.Sscan(string(text), &seconds)
	return seconds
}

// mixedFleet is processes of all kinds that compete for the same locks.
type mixedFleet struct {
	clientFixture
	mode    fleetMode
	workers []*fleetWorker

	mu      sync.Mutex
	holders map[string]string // worker by holder
	hits    map[string][]hit  // times in which a fault stopped a worker; "" is all of them
}

// hit is a fault, by the server's clock and by that of the intervals.
type hit struct {
	at   time.Time
	from float64
}

// fleetWorker is one process after the other: a killed one is replaced.
type fleetWorker struct {
	*clientProcess
	kind, name string
}

func newMixedFleet(t *testing.T, mode fleetMode) *mixedFleet {
	t.Helper()
	f := &mixedFleet{clientFixture: clientFixture{t: t, url: pgtest.Database(t)}, mode: mode, holders: map[string]string{}, hits: map[string][]hit{}}
	f.client = locktest.Client(t, f.url)
	f.pool = pgtest.PoolOn(t, f.url)
	locktest.Exec(t, f.pool, clientFleetSQL)
	locktest.OK(t, func() error { // so that no grant is the first one of its name, which the trigger does not see
		for _, name := range []string{"a", "b"} {
			if err := f.client.Do(t.Context(), name, func(context.Context, *pglock.Lease) error { return nil }); err != nil {
				return err
			}
		}
		return nil
	}())
	for i, kind := range []string{"go", "python", "shell", "go", "python listening", "shell"} {
		w := &fleetWorker{kind: kind, name: fmt.Sprintf("worker %d", i)}
		f.workers = append(f.workers, w)
		f.start(w)
	}
	return f
}

// start starts a process of the worker.
func (f *mixedFleet) start(w *fleetWorker) {
	f.t.Helper()
	var args []string
	switch w.kind {
	case "go":
		args = []string{os.Args[0]}
	case "shell":
		args = []string{bash(f.t), clientHelper + "fleet.sh", clientDir + "pglock.sh", w.name, string(f.mode)}
	default:
		args = []string{python(f.t), clientHelper + "fleet.py", f.url, w.name, w.kind, string(f.mode), strconv.Itoa(shortTTL)}
	}
	p := startClient(f.t, f.url, args, "PGAPPNAME="+w.name, fmt.Sprint("PGLOCK_TTL=", shortTTL),
		clientWorkerVariable+"="+strings.Join([]string{f.url, w.name, string(f.mode)}, "\n"))
	w.clientProcess = p
	host, err := os.Hostname()
	locktest.OK(f.t, err)
	f.mu.Lock()
	f.holders[w.name] = w.name
	f.mu.Unlock()
	go func() {
		for line := range p.lines {
			if pid, ok := strings.CutPrefix(line, "pid "); ok {
				f.mu.Lock()
				f.holders[host+" "+pid] = w.name
				f.mu.Unlock()
			}
		}
	}()
}

func (f *mixedFleet) hit(worker string, from float64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.hits[worker] = append(f.hits[worker], hit{time.Now(), from})
}

// victim returns a worker that holds a lock just now, or any other if none does.
func (f *mixedFleet) victim() *fleetWorker {
	f.t.Helper()
	holder := locktest.Scan[string](f.t, f.pool, "SELECT coalesce((SELECT holder FROM pglock.locks_held ORDER BY random() LIMIT 1), '')")
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, w := range f.workers {
		if w.name == f.holders[holder] {
			return w
		}
	}
	return f.workers[rand.IntN(len(f.workers))]
}

// strike injects one fault.
func (f *mixedFleet) strike() {
	f.t.Helper()
	w := f.victim()
	f.hit(w.name, uptime())
	switch rand.IntN(3) {
	case 0:
		w.signal(syscall.SIGKILL)
		_ = w.cmd.Wait() // killed
		f.start(w)
	case 1:
		w.signal(syscall.SIGSTOP)
		<-time.After(fleetTTL + rand.N(fleetTTL)) // another worker is granted the lock meanwhile
		w.signal(syscall.SIGCONT)
	default:
		_, _ = f.pool.Exec(f.t.Context(), "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = $1", w.name)
	}
	f.hit(w.name, uptime())
}

// run injects faults for that long, and returns once each worker has written since.
func (f *mixedFleet) run(length time.Duration) {
	f.t.Helper()
	ctx, cancel := context.WithTimeout(f.t.Context(), length)
	defer cancel()
	var watching sync.WaitGroup
	watching.Go(func() { // a machine that stands still stops all workers
		for last := uptime(); ctx.Err() == nil; {
			<-time.After(20 * time.Millisecond)
			if now := uptime(); now-last > 0.15 {
				f.hit("", last)
			}
			last = uptime()
		}
	})
	for ctx.Err() == nil && (f.mode == protectedFleet || f.verdict().violations() == 0) {
		if f.mode == protectedFleet {
			f.strike()
		}
		<-time.After(rand.N(500 * time.Millisecond))
	}
	cancel()
	watching.Wait()
	if f.mode == protectedFleet {
		since := uptime()
		pgtest.Eventually(f.t, "every worker has a turn", func() bool {
			return locktest.Scan[int](f.t, f.pool, "SELECT count(DISTINCT worker) FROM intervals WHERE began > $1::float8", since) == len(f.workers)
		})
	}
	for _, w := range f.workers {
		w.signal(syscall.SIGKILL)
	}
}

// fleetVerdict counts what must not happen.
type fleetVerdict struct{ lostUpdates, staleWrites, overlaps, overtaken int }

// violations counts those that no fault explains.
func (v fleetVerdict) violations() int {
	return v.lostUpdates + v.staleWrites + v.overlaps + v.overtaken
}

// verdict judges the tables.
func (f *mixedFleet) verdict() (v fleetVerdict) {
	f.t.Helper()
	v.lostUpdates = locktest.Scan[int](f.t, f.pool, "SELECT (SELECT count(*) FROM entries) - (SELECT sum(balance) FROM accounts)")
	v.staleWrites = locktest.Scan[int](f.t, f.pool, `SELECT count(*) FROM (SELECT token < max(token) OVER (PARTITION BY name ORDER BY id) AS stale FROM entries) AS e WHERE stale`)
	rows, err := f.pool.Query(f.t.Context(), "SELECT kind, worker, began::float8, seen::float8, other_kind, other, other_began::float8, other_seen::float8 FROM holders_at_once")
	locktest.OK(f.t, err)
	type interval struct {
		Kind, Worker string
		Began, Seen  float64
	}
	pairs, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (p [2]interval, err error) {
		err = row.Scan(&p[0].Kind, &p[0].Worker, &p[0].Began, &p[0].Seen, &p[1].Kind, &p[1].Worker, &p[1].Began, &p[1].Seen)
		return p, err
	})
	locktest.OK(f.t, err)
	f.mu.Lock()
	defer f.mu.Unlock()
	// The command of the shell does not look at a clock: it runs on for a moment after a
	// suspension, until its timer kills it.
	for _, p := range pairs {
		for i := range p {
			for _, worker := range []string{p[i].Worker, ""} {
				for _, h := range f.hits[worker] {
					if p[i].Kind == "shell" && f.mode == protectedFleet && h.from > p[i].Began {
						p[i].Seen = min(p[i].Seen, h.from)
					}
				}
			}
		}
		if p[0].Began < p[1].Seen && p[1].Began < p[0].Seen {
			v.overlaps++
			if f.mode == protectedFleet {
				f.t.Logf("two holders at once: %+v", p)
			}
		}
	}
	if f.mode == unlockedFleet {
		return v
	}
	rows, err = f.pool.Query(f.t.Context(), "SELECT holder, head, at FROM overtaken")
	locktest.OK(f.t, err)
	var holder, head string
	var at time.Time
	_, err = pgx.ForEachRow(rows, []any{&holder, &head, &at}, func() error {
		explained := false
		for _, worker := range []string{f.holders[head], ""} {
			for _, h := range f.hits[worker] {
				explained = explained || h.at.Before(at) && at.Before(h.at.Add(recovery)) && (worker != "" || f.holders[head] != "")
			}
		}
		if !explained {
			v.overtaken++
			if f.mode == protectedFleet {
				f.t.Logf("%s overtook %s (%s)", holder, head, f.holders[head])
			}
		}
		return nil
	})
	locktest.OK(f.t, err)
	return v
}

// TestChaosClientsInAMixedFleet has processes in Go, Python and shell compete for two locks while
// they are killed, suspended and disconnected. Two controls must show violations: workers without a
// lock, and workers that ignore the queue.
func TestChaosClientsInAMixedFleet(t *testing.T) {
	t.Parallel()
	python(t)
	bash(t)
	t.Run("protected", func(t *testing.T) {
		t.Parallel()
		length := shortFleet
		if os.Getenv("PGLOCK_CHAOS") != "" {
			length = longFleet
		}
		f := newMixedFleet(t, protectedFleet)
		f.run(length)
		v := f.verdict()
		if v.lostUpdates+v.staleWrites+v.overlaps > 0 {
			t.Errorf("violations: %+v", v)
		}
		grants := locktest.Scan[int](t, f.pool, "SELECT count(*) FROM (SELECT DISTINCT name, token FROM intervals) AS g")
		// On a machine with too much to do, a waiter in shell does not always come in time.
		if v.overtaken*20 > grants {
			t.Errorf("%d waiters were overtaken, of %d grants", v.overtaken, grants)
		}
		f.mu.Lock()
		faults := 0
		for worker, hits := range f.hits {
			if worker != "" {
				faults += len(hits) / 2
			}
		}
		t.Logf("%d faults, %d stalls of the machine, %+v\n| kind | grants | writes |\n|---|---|---|\n%s", faults, len(f.hits[""]), v, locktest.Scan[string](t, f.pool, `SELECT string_agg(format('| %s | %s | %s |', kind,
			(SELECT count(DISTINCT token) FROM intervals AS i WHERE i.kind = e.kind), n), E'\n' ORDER BY kind) FROM (SELECT kind, count(*) AS n FROM entries GROUP BY kind) AS e`))
		f.mu.Unlock()
		if grants < 10 {
			t.Errorf("the run shows little: %d grants", grants)
		}
	})
	for _, mode := range []fleetMode{unlockedFleet, bargingFleet} {
		t.Run("control "+string(mode), func(t *testing.T) {
			t.Parallel()
			f := newMixedFleet(t, mode)
			f.run(pgtest.Patience)
			v := f.verdict()
			if mode == unlockedFleet && v.lostUpdates == 0 || mode == bargingFleet && v.overtaken == 0 {
				t.Errorf("no violation: %+v", v)
			}
			t.Logf("%+v", v)
		})
	}
}
