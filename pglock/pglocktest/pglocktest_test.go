package pglocktest_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglock/pglock-go/fencing"
	"github.com/pglock/pglock-go/internal/locktest"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/inspect"
	"github.com/pglock/pglock-go/pglock/pglocktest"
	"github.com/pglock/pglock-go/pglock/schedule"
)

// everywhere runs a test with a fake and with a server.
func everywhere(t *testing.T, test func(t *testing.T, k *pglocktest.Locks)) {
	t.Helper()
	for name, open := range places {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, open(t))
		})
	}
}

// guard guards a transaction.
func guard(t *testing.T, k *pglocktest.Locks, l *pglock.Lease) error {
	t.Helper()
	tx, err := k.Begin(t.Context())
	locktest.OK(t, err)
	defer func() { locktest.OK(t, tx.Rollback(context.Background())) }()
	return l.Guard(t.Context(), tx)
}

func TestPause(t *testing.T) {
	t.Parallel()
	everywhere(t, func(t *testing.T, k *pglocktest.Locks) {
		t.Helper()
		l, err := k.Acquire(t.Context(), "n")
		locktest.OK(t, err)
		if err := guard(t, k, l); err != nil {
			t.Errorf("control: the guard of a current lease: %v", err)
		}
		k.Pause(l)
		k.RequireFree("n")
		if l.Err() != nil {
			t.Errorf("the holder knows: %v", l.Err())
		}
		next := k.Busy("n", "next")
		k.RequireHeld("n", "next")
		var stale *fencing.StaleError
		if err := guard(t, k, l); !errors.As(err, &stale) || stale.Current != next.Token() {
			t.Errorf("a late write: %v", err)
		}
		k.Lose(l) // so that nothing is left
		long, err := k.Acquire(t.Context(), "long", pglock.WithMaxHold(time.Minute))
		locktest.OK(t, err)
		k.Lose(long)
		if !errors.Is(l.Err(), pglock.ErrLost) || next.Err() != nil {
			t.Errorf("lost: %v, the next holder: %v", l.Err(), next.Err())
		}
	})
}

func TestLose(t *testing.T) {
	t.Parallel()
	everywhere(t, func(t *testing.T, k *pglocktest.Locks) {
		t.Helper()
		err := k.Do(t.Context(), "n", func(ctx context.Context, l *pglock.Lease) error {
			k.Lose(l)
			pglocktest.RequireContextEnds(t, ctx)
			return context.Cause(ctx)
		})
		if !errors.Is(err, pglock.ErrLost) {
			t.Errorf("%v", err)
		}
		if got := strings.Join(k.Events(), ", "); got != "granted n, lost n: ended" {
			t.Errorf("%s", got)
		}
	})
}

func TestExpireAndAdvance(t *testing.T) {
	t.Parallel()
	everywhere(t, func(t *testing.T, k *pglocktest.Locks) {
		t.Helper()
		for name, end := range map[string]func(){
			"expired": func() { k.Expire("expired") },
			"old":     func() { k.Advance(time.Minute) },
		} {
			first := k.Busy(name, "first")
			granted := make(chan *pglock.Lease, 1)
			go func() {
				l, err := k.Acquire(t.Context(), name)
				if err != nil {
					t.Error(err)
				}
				granted <- l
			}()
			pgtest.Eventually(t, "it waits", func() bool { return slices.Contains(k.Events(), "waits "+name) })
			end()
			l := locktest.Receive(t, granted)
			if l.Token() <= first.Token() {
				t.Errorf("token %d after %d", l.Token(), first.Token())
			}
			locktest.OK(t, l.Release(t.Context()))
			k.RequireFree(name)
		}
	})
}

// TestExpireAReader: the writer that waits is granted the lock at once.
func TestExpireAReader(t *testing.T) {
	t.Parallel()
	test := func(t *testing.T, k *pglocktest.Locks) (took time.Duration) {
		t.Helper()
		reader, err := k.Open().Reader("rw").Acquire(t.Context())
		locktest.OK(t, err)
		granted := make(chan *pglock.Lease, 1)
		go func() {
			l, err := k.Writer("rw").Acquire(t.Context())
			if err != nil {
				t.Error(err)
			}
			granted <- l
		}()
		pgtest.Eventually(t, "it waits", func() bool { return slices.Contains(k.Events(), "waits rw") })
		<-time.After(5 * time.Second / 2) // without a notification it would try again much later
		began := time.Now()
		k.Expire("rw")
		l := locktest.Receive(t, granted)
		took = time.Since(began)
		locktest.OK(t, l.Release(t.Context()))
		k.Lose(reader)
		return took
	}
	t.Run("fake", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			if took := test(t, pglocktest.Fake(t)); took > 100*time.Millisecond {
				t.Errorf("granted after %v", took)
			}
		})
	})
	t.Run("server", func(t *testing.T) {
		t.Parallel()
		test(t, pglocktest.New(t, pgtest.Pool(t)))
	})
}

func TestUnavailable(t *testing.T) {
	t.Parallel()
	everywhere(t, func(t *testing.T, k *pglocktest.Locks) {
		t.Helper()
		restore := k.Unavailable()
		if _, err := k.TryAcquire(t.Context(), "n"); !errors.Is(err, pglock.ErrUnavailable) {
			t.Errorf("while the server is away: %v", err)
		}
		restore()
		l, err := k.Acquire(t.Context(), "n")
		locktest.OK(t, err)
		locktest.OK(t, l.Release(t.Context()))
	})
}

func TestElect(t *testing.T) {
	t.Parallel()
	everywhere(t, func(t *testing.T, k *pglocktest.Locks) {
		t.Helper()
		ctx, stop := context.WithCancel(t.Context())
		p := &payouts{locks: k.Client, bank: &inMemory{}}
		led, done := make(chan context.Context, 10), make(chan struct{})
		go func() {
			defer close(done)
			_ = p.Lead(ctx, func(ctx context.Context) { led <- ctx; <-ctx.Done() })
		}()
		first := locktest.Receive(t, led)
		deposed, err := pglock.Require(first, "settlement")
		locktest.OK(t, err)
		term := k.Elect("settlement", "another replica")
		k.RequireHeld("settlement", "another replica")
		k.Lose(deposed) // unless it knows: it learns of the other one by its next renewal, or when it announces its payload
		pglocktest.RequireContextEnds(t, first)
		locktest.OK(t, term.Resign(t.Context()))
		locktest.Receive(t, led)
		stop()
		<-done
	})
}

func TestDeadlock(t *testing.T) {
	t.Parallel()
	everywhere(t, func(t *testing.T, k *pglocktest.Locks) {
		t.Helper()
		holders, names := []string{"A", "B"}, []string{"one", "two"}
		var leases []*pglock.Lease
		for i, holder := range holders {
			l, err := k.Open(pglock.WithHolder(holder)).Acquire(t.Context(), names[i])
			locktest.OK(t, err)
			leases = append(leases, l)
		}
		results := make([]error, 2)
		var both sync.WaitGroup
		for i, held := range leases {
			both.Go(func() {
				l, err := k.Acquire(held.Context(), names[1-i])
				if results[i] = err; err == nil {
					locktest.OK(t, l.Release(t.Context()))
				}
				locktest.OK(t, held.Release(t.Context()))
			})
		}
		both.Wait()
		if errors.Is(results[0], pglock.ErrDeadlock) == errors.Is(results[1], pglock.ErrDeadlock) || results[0] != nil && results[1] != nil {
			t.Errorf("%v, %v", results[0], results[1])
		}
	})
}

func TestTick(t *testing.T) {
	t.Parallel()
	everywhere(t, func(t *testing.T, k *pglocktest.Locks) {
		t.Helper()
		job, err := schedule.New(k.Client, "job")
		locktest.OK(t, err)
		tick := time.Now().Add(-time.Minute).Truncate(time.Second)
		runs := 0
		run := func(context.Context, *pglock.Lease) error { runs++; return nil }
		k.Tick("job", tick)
		if err := job.Once(t.Context(), tick, run); !errors.Is(err, schedule.ErrDone) || runs != 0 {
			t.Errorf("a tick of another process: %v, %d runs", err, runs)
		}
		if err := job.Once(t.Context(), tick.Add(time.Second), run); err != nil || runs != 1 {
			t.Errorf("the next tick: %v, %d runs", err, runs)
		}
	})
}

// TestRequireGuarded finds writes without a guard, those whose guard was rolled back among them.
func TestRequireGuarded(t *testing.T) {
	t.Parallel()
	pool := pgtest.PoolOn(t, pgtest.Database(t))
	for _, table := range []string{"paid", `"other 'table"`, "unnamed"} {
		_, err := pool.Exec(t.Context(), "CREATE TABLE "+table+" (id int)")
		locktest.OK(t, err)
	}
	_, err := pool.Exec(t.Context(), "INSERT INTO paid VALUES (0)") // there is something to delete, whichever case comes first
	locktest.OK(t, err)
	const insert, guard = "INSERT INTO paid VALUES (1), (2)", "guard"
	for name, test := range map[string]struct {
		statements []string
		finds      string
	}{
		"guarded":                   {[]string{guard, insert}, ""},
		"guarded late":              {[]string{insert, guard}, ""},
		"not guarded":               {[]string{insert}, "2 rows of paid"},
		"deleted":                   {[]string{"DELETE FROM paid"}, "rows of paid"},
		"an update of nothing":      {[]string{"UPDATE paid SET id = 2 WHERE false"}, ""},
		"another table":             {[]string{`INSERT INTO "other 'table" VALUES (1)`}, `1 rows of "other 'table"`},
		"a table that is not named": {[]string{"INSERT INTO unnamed VALUES (1)"}, ""},
		"rolled back":               {[]string{"SAVEPOINT s", insert, "ROLLBACK TO s"}, ""},
		"guard in a savepoint":      {[]string{"SAVEPOINT s", guard, "RELEASE s", insert}, ""},
		"guard rolled back":         {[]string{"SAVEPOINT s", guard, "ROLLBACK TO s", insert}, "2 rows of paid"},
	} {
		r := &reports{TB: t}
		k := pglocktest.New(r, pool, calm)
		r.run(func() {
			k.RequireGuarded(func() {
				locktest.OK(t, k.Do(t.Context(), "n", func(ctx context.Context, l *pglock.Lease) error {
					return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) (err error) {
						for _, s := range test.statements {
							if s == guard {
								err = errors.Join(err, l.Guard(ctx, tx))
								continue
							}
							_, failed := tx.Exec(ctx, s)
							err = errors.Join(err, failed)
						}
						return err
					})
				}))
			}, "paid", `"other 'table"`)
		})
		if found := strings.Join(r.failed, " "); found != "" && test.finds == "" || !strings.Contains(found, test.finds) {
			t.Errorf("%s: found %q, want %q", name, found, test.finds)
		}
		r.end()
	}
	var left int
	locktest.OK(t, pool.QueryRow(t.Context(), "SELECT count(*) FROM pg_trigger WHERE tgname = 'pglocktest_watch'").Scan(&left))
	if left > 0 {
		t.Errorf("%d triggers are left", left)
	}
	r := &reports{TB: t}
	k := pglocktest.New(r, pool)
	r.run(func() { k.RequireGuarded(func() { t.Error("it runs") }, "paid", "no such table") })
	r.run(func() { pglocktest.Fake(r).RequireGuarded(func() { t.Error("it runs") }, "paid") })
	if len(r.failed) != 2 {
		t.Errorf("a table that does not exist, and a fake: %q", r.failed)
	}
	r.end()
}

// reports is a testing.TB that collects failures.
type reports struct {
	testing.TB
	failed   []string
	cleanups []func()
}

func (r *reports) Helper()          {}
func (r *reports) Cleanup(f func()) { r.cleanups = append(r.cleanups, f) }

func (r *reports) Errorf(f string, args ...any) {
	r.failed = append(r.failed, strings.TrimSpace(fmt.Sprintf(f, args...)))
}

func (r *reports) Fatalf(f string, args ...any) {
	r.Errorf(f, args...)
	runtime.Goexit()
}

// run runs a part of the test, which Fatalf ends.
func (r *reports) run(part func()) {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		part()
	}()
	<-ended
}

func (r *reports) end() {
	for _, f := range slices.Backward(r.cleanups) {
		f()
	}
}

func TestLeaks(t *testing.T) {
	t.Parallel()
	for name, open := range map[string]func(tb testing.TB) *pglocktest.Locks{
		"fake":   func(tb testing.TB) *pglocktest.Locks { tb.Helper(); return pglocktest.Fake(tb) },
		"server": func(tb testing.TB) *pglocktest.Locks { tb.Helper(); return pglocktest.New(tb, pgtest.Pool(t)) },
	} {
		for leak, use := range map[string]func(k *pglocktest.Locks){
			"none": func(k *pglocktest.Locks) {
				locktest.OK(t, k.Do(t.Context(), "n", func(context.Context, *pglock.Lease) error { return nil }))
			},
			"lease": func(k *pglocktest.Locks) {
				_, err := k.Acquire(t.Context(), "n")
				locktest.OK(t, err)
			},
			"call": func(k *pglocktest.Locks) {
				k.Busy("n", "other")
				ended := make(chan struct{})
				t.Cleanup(func() { <-ended })
				go func() {
					defer close(ended)
					_, _ = k.Acquire(context.Background(), "n") // until the client is closed
				}()
				pgtest.Eventually(t, "it waits", func() bool { return slices.Contains(k.Events(), "waits n") })
			},
		} {
			r := &reports{TB: t}
			use(open(r))
			r.end()
			if found := len(r.failed) > 0; found != (leak != "none") {
				t.Errorf("%s, leak %s: %v", name, leak, r.failed)
			}
		}
	}
}

// TestInABubble: half an hour of renewals, and a loss by the deadline, take no time.
func TestInABubble(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		k := pglocktest.Fake(t, pglock.WithTTL(10*time.Second))
		began := time.Now()
		l, err := k.Acquire(t.Context(), "n")
		locktest.OK(t, err)
		<-time.After(30 * time.Minute)
		if l.Err() != nil {
			t.Errorf("after %v: %v", time.Since(began), l.Err())
		}
		restore := k.Unavailable()
		<-l.Done()
		if !errors.Is(l.Err(), pglock.ErrLost) {
			t.Errorf("the server is away: %v", l.Err())
		}
		restore()
		<-time.After(time.Second) // the server's clock decides
		k.RequireFree("n")
	})
}

// TestFakeWithoutSQL: what needs SQL says so.
func TestFakeWithoutSQL(t *testing.T) {
	t.Parallel()
	k := pglocktest.Fake(t)
	_, snapshotErr := k.Snapshot(t.Context(), inspect.Query{})
	for _, err := range k.Locks(t.Context(), inspect.Filter{}) {
		if err == nil || !strings.Contains(err.Error(), "a fake has no database") {
			t.Errorf("Locks: %v", err)
		}
	}
	for what, err := range map[string]error{
		"Snapshot": snapshotErr, "DoTx": k.DoTx(t.Context(), "n", nil), "WithConn": k.WithConn(t.Context(), nil),
	} {
		if err == nil || !strings.Contains(err.Error(), "a fake has no database") {
			t.Errorf("%s: %v", what, err)
		}
	}
}
