package pglock_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/pglock/pglock-go/fencing"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/internal/schema"
	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/inspect"
)

// namesOf returns the names of the locks in the order of the iteration.
func namesOf(t *testing.T, locks iter.Seq2[inspect.Lock, error]) []string {
	t.Helper()
	names := []string{}
	for k, err := range locks {
		must(t, err)
		names = append(names, k.Name)
	}
	return names
}

func TestLocksAreFiltered(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.open()
	labels := func(pairs ...string) pglock.LeaseOption {
		m := map[string]string{}
		for i := 0; i < len(pairs); i += 2 {
			m[pairs[i]] = pairs[i+1]
		}
		return pglock.WithLabels(m)
	}
	for _, l := range []*pglock.Lease{
		try(t, c, "job/1", pglock.WithHolder("a"), labels("team", "x", "env", "prod")),
		try(t, c, "job/20", pglock.WithHolder("b"), labels("team", "x")),
		try(t, c, "job_30", pglock.WithHolder("a"), labels("team", "y")),
		try(t, c, "job%40"),
	} {
		defer release(t, l)
	}
	release(t, try(t, c, "job/free"))
	release(t, try(t, c, "elected", labels("payload", "")))
	release(t, tried(t, c.Semaphore("sem", 2)))
	release(t, tried(t, c.Writer("rw")))
	f.sql("INSERT INTO pglock.distributed_locks (name, token, version, holder, acquired_at, expires_at) VALUES ('expired', 1, 1, 'a', now(), now())")
	for _, tc := range []struct {
		filter inspect.Filter
		want   []string
	}{
		{inspect.Filter{}, []string{"elected", "expired", "job%40", "job/1", "job/20", "job/free", "job_30", "rw", "sem"}},
		{inspect.Filter{Shared: true}, []string{"rw", "sem"}},
		{inspect.Filter{Shared: true, Prefix: "s"}, []string{"sem"}},
		{inspect.Filter{Elections: true}, []string{"elected"}},
		{inspect.Filter{Elections: true, Held: true}, []string{}},
		{inspect.Filter{Held: true}, []string{"job%40", "job/1", "job/20", "job_30"}},
		{inspect.Filter{Prefix: "job/"}, []string{"job/1", "job/20", "job/free"}},
		{inspect.Filter{Prefix: "job_"}, []string{"job_30"}},
		{inspect.Filter{Pattern: "job_*"}, []string{"job_30"}},
		{inspect.Filter{Pattern: "job%*"}, []string{"job%40"}},
		{inspect.Filter{Pattern: "*/?"}, []string{"job/1"}},
		{inspect.Filter{Pattern: "job/"}, []string{}},
		{inspect.Filter{Pattern: `job\*`}, []string{}},
		{inspect.Filter{Holder: "a"}, []string{"expired", "job/1", "job_30"}},
		{inspect.Filter{Holder: "a", Held: true}, []string{"job/1", "job_30"}},
		{inspect.Filter{Labels: map[string]string{"team": "x"}}, []string{"job/1", "job/20"}},
		{inspect.Filter{Labels: map[string]string{"team": "x", "env": "prod"}}, []string{"job/1"}},
		{inspect.Filter{Prefix: "job", Labels: map[string]string{"team": "z"}}, []string{}},
	} {
		got := namesOf(t, c.Locks(t.Context(), tc.filter))
		slices.Sort(got) // the order is that of the database's collation
		if !slices.Equal(got, tc.want) {
			t.Errorf("%+v: %q, want %q", tc.filter, got, tc.want)
		}
	}
	for _, invalid := range []inspect.Filter{{Prefix: "\x00"}, {Pattern: "\xff"}, {Holder: "\x00"}, {Labels: map[string]string{"k": "\xff"}}} {
		for k, err := range c.Locks(t.Context(), invalid) {
			if !errors.Is(err, pglock.ErrInvalidOption) {
				t.Errorf("%+v: %+v, %v", invalid, k, err)
			}
		}
	}
}

// TestLocksTellEverything that is known about a lock, as Get does.
func TestLocksTellEverything(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.open()
	release(t, try(t, c, "n", pglock.WithHolder("first")))
	l := try(t, c, "n", pglock.WithHolder("second"), pglock.WithLabels(map[string]string{"k": "v"}))
	one, two := f.open(pglock.WithHolder("waiter 1")), f.open(pglock.WithHolder("waiter 2"))
	got := []<-chan *pglock.Lease{f.waits(one, "n"), f.waits(two, "n")}
	f.sql("UPDATE pglock.lock_waiters SET since = since - interval '1 hour' WHERE holder = 'waiter 2'")
	check := func(k inspect.Lock) {
		t.Helper()
		if k.Name != "n" || !k.Held() || k.Token != l.Token() || k.Holder != "second" || k.Labels["k"] != "v" || k.Version < 3 ||
			k.HeldFor <= 0 || k.HeldFor > time.Hour || k.Remaining > 30*time.Second || k.ReleaseRequested {
			t.Errorf("the lock: %+v", k)
		}
		if k.Previous.Holder != "first" || k.Previous.End != "released" || k.Previous.EndedAt.After(k.AcquiredAt) || k.Previous.EndedAt.IsZero() {
			t.Errorf("the last grant: %+v", k.Previous)
		}
		if len(k.Waiters) != 2 || k.Waiters[0].Holder != "waiter 1" || k.Waiters[1].Holder != "waiter 2" ||
			k.Waiters[0].Ticket >= k.Waiters[1].Ticket || k.Waiters[0].Waited >= time.Hour || k.Waiters[1].Waited < time.Hour {
			t.Errorf("the waiters: %+v", k.Waiters)
		}
	}
	k, err := c.Get(t.Context(), "n")
	must(t, err)
	check(k)
	for k, err := range c.Locks(t.Context(), inspect.Filter{}) {
		must(t, err)
		check(k)
	}
	release(t, l)
	for _, granted := range got {
		release(t, next(t, granted))
	}
	f.sql("UPDATE pglock.distributed_locks SET holder = 'dead', expires_at = now() - interval '1 min'")
	f.sql(`UPDATE pglock.distributed_locks SET labels = '{"number": 1, "text": "x"}'`) // by another program
	if k, err = c.Get(t.Context(), "n"); err != nil || k.Labels["number"] != "1" || k.Labels["text"] != "x" {
		t.Errorf("labels of another program: %v, %v", k.Labels, err)
	}
	if k, err = c.Get(t.Context(), "n"); err != nil || k.Held() || k.HeldFor != 0 || k.Previous.Holder != "dead" || k.Previous.End != "expired" ||
		k.Previous.EndedAt.After(k.AcquiredAt) || k.Waiters != nil {
		t.Errorf("an expired lock: %+v, %v", k, err)
	}
}

// manyRows inserts free locks.
func (f fixture) manyRows(n int) {
	f.t.Helper()
	f.sql(`INSERT INTO pglock.distributed_locks (name, token, version, acquired_at, expires_at, labels)
	       SELECT 'lock ' || i, i, 1, now(), '-infinity', jsonb_build_object('n', i) FROM generate_series(1, $1::int) AS i`, n)
}

// TestAHundredThousandLocks are listed in constant memory, and the client has no snapshot while the
// caller's loop runs. The control of the memory keeps all of them.
func TestAHundredThousandLocks(t *testing.T) {
	const n = 100_000
	f := newFixture(t)
	f.manyRows(n)
	pool := pgtest.UserPool(t, f.pool, f.schema)
	c, err := pglock.Open(t.Context(), pool, pglock.WithSchema(f.schema))
	must(t, err)
	defer c.Close(t.Context())
	heap := func() int64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	list := func(each func(i int, k inspect.Lock)) {
		i := 0
		for k, err := range c.Locks(t.Context(), inspect.Filter{}) {
			must(t, err)
			i++
			each(i, k)
		}
		if i != n {
			t.Errorf("%d locks, want %d", i, n)
		}
	}
	before, most := heap(), int64(0)
	sum := fencing.Token(0)
	list(func(i int, k inspect.Lock) {
		sum += k.Token
		if i%20_000 != 777 {
			return
		}
		most = max(most, heap()-before)
		if busy := value[int](f, "SELECT count(*) FROM pg_stat_activity WHERE usename = $1 AND (state <> 'idle' OR backend_xmin IS NOT NULL)",
			pgtest.RoleOf(pool)); busy != 0 {
			t.Errorf("%d connections of the client are in use in the loop", busy)
		}
	})
	if sum != n*(n+1)/2 {
		t.Error("some locks were listed twice, others not")
	}
	all := make([]inspect.Lock, 0, n)
	before = heap()
	list(func(_ int, k inspect.Lock) { all = append(all, k) })
	kept := heap() - before
	t.Logf("the iteration needs at most %d KiB, a slice of all locks %d KiB", most>>10, kept>>10)
	if most > kept/8 {
		t.Errorf("the iteration needs %d bytes, all locks %d", most, kept)
	}
	runtime.KeepAlive(all)
}

// TestLocksEnd with the caller's loop, with ctx, and with the client.
func TestLocksEnd(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.manyRows(2000)
	c := f.openUnclosed()
	for _, err := range c.Locks(t.Context(), inspect.Filter{}) {
		must(t, err)
		break
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	why := errors.New("enough")
	var last error
	n := 0
	for _, err := range c.Locks(ctx, inspect.Filter{}) {
		cancel(why)
		if last = err; err == nil {
			n++
		}
	}
	if !errors.Is(last, why) || !errors.Is(last, context.Canceled) || n == 0 || n >= 2000 {
		t.Errorf("%d locks before ctx ended: %v", n, last)
	}
	n = 0
	for _, err := range c.Locks(t.Context(), inspect.Filter{}) {
		if n == 0 { // Close does not wait for the loop
			check(t, c.Close(t.Context()))
		}
		if last = err; err == nil {
			n++
		}
	}
	if !errors.Is(last, pglock.ErrClosed) || n == 0 || n >= 2000 {
		t.Errorf("%d locks before the client was closed: %v", n, last)
	}
}

// lastGrant returns what the row of the name n says about the last grant that is over.
func (f fixture) lastGrant() string {
	f.t.Helper()
	return value[string](f, `SELECT concat_ws(' ', last_end, last_holder, ended_at BETWEEN now() - interval '1 hour' AND clock_timestamp(),
		'then', coalesce(holder, 'free')) FROM pglock.distributed_locks WHERE name = 'n'`)
}

// TestTheRowKeepsTheLastHolder: by each statement that ends a grant or writes the next one, alone
// and in batches.
func TestTheRowKeepsTheLastHolder(t *testing.T) {
	t.Parallel()
	for _, forced := range []bool{false, true} {
		t.Run(fmt.Sprint("batches ", forced), func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			c := f.open(pglock.WithBatches(8, forced), pglock.WithRenewEvery(0))
			is := func(want string) {
				t.Helper()
				if got := f.lastGrant(); got != want {
					t.Errorf("the row says %q, want %q", got, want)
				}
			}
			l := try(t, c, "n", pglock.WithHolder("first"))
			is("then first")
			release(t, l)
			is("released first t then free")

			expiring := try(t, c, "n", pglock.WithHolder("second"), pglock.WithTTL(500*time.Millisecond))
			is("released first t then second")
			<-expiring.Done()
			until(f, "it has expired", true, "SELECT expires_at <= clock_timestamp() FROM pglock.distributed_locks WHERE name = 'n'")
			l = try(t, c, "n", pglock.WithHolder("third"))
			is("expired second t then third")
			waiting := async(t, c.Lock("n"), pglock.WithHolder("fourth"))
			pgtest.Eventually(t, "the fourth waits", func() bool { return pglock.HeadWaits(c, "n") })
			release(t, l)
			l = next(t, waiting)
			is("released third t then fourth")

			// The full statement writes the grant: the queue was skipped. The fourth has left it before, because the
			// time of the next one begins then.
			until(f, "tickets", 0, "SELECT count(*)::int FROM pglock.lock_waiters")
			f.sql("INSERT INTO pglock.lock_waiters (name, client, ticket, expires_at) VALUES ('n', 'dead', 1::bigint << 61, now() + interval '1 hour')")
			f.sql("UPDATE pglock.distributed_locks SET ended_at = now() - interval '2 min', expires_at = now() - interval '1 min'")
			fifth := try(t, c, "n", pglock.WithHolder("fifth"))
			fails(t, "release of the expired lease", l.Release(t.Context()), pglock.ErrLost)
			is("expired fourth t then fifth")
			release(t, fifth)
			is("released fifth t then free")
		})
	}
}

// TestTheViewsTellWhoHoldsAndWaits, to a role without rights on the tables.
func TestTheViewsTellWhoHoldsAndWaits(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	held := try(t, f.open(), "held", pglock.WithHolder("me"), pglock.WithLabels(map[string]string{"k": "v"}))
	release(t, try(t, f.open(), "free"))
	f.sql("INSERT INTO pglock.distributed_locks (name, token, version, holder, acquired_at, expires_at) VALUES ('expired', 1, 1, 'dead', now(), now())")
	got := f.waits(f.open(pglock.WithHolder("waiter")), "held")
	// Neither an expired row nor that of a client that watches is a waiter.
	f.sql("INSERT INTO pglock.lock_waiters (name, client, ticket, state, expires_at) VALUES ('held', 'dead', 1::bigint << 61, 'queued', now() - interval '1 s'), ('held', 'watches', 0, 'watching', now() + interval '1 hour')")

	reader := fixture{t, pgtest.WriterPool(t, f.pool, f.schema), f.schema} // with USAGE on the schema
	f.sql("GRANT SELECT ON pglock.locks_held, pglock.locks_waiting TO " + schema.Quote(pgtest.RoleOf(reader.pool)))
	is(reader, "held locks", 1, "SELECT count(*) FROM pglock.locks_held")
	if !value[bool](reader, `SELECT name = 'held' AND holder = 'me' AND token = $1 AND labels->>'k' = 'v'
		AND since BETWEEN now() - interval '1 hour' AND clock_timestamp() AND remaining BETWEEN interval '1 s' AND interval '30 s'
		FROM pglock.locks_held`, int64(held.Token())) {
		t.Error("the view of held locks is wrong")
	}
	is(reader, "waiters", 1, "SELECT count(*) FROM pglock.locks_waiting")
	if !value[bool](reader, `SELECT name = 'held' AND client = 'waiter' AND ticket > 0 AND waited BETWEEN interval '0' AND interval '1 hour'
		FROM pglock.locks_waiting`) {
		t.Error("the view of waiters is wrong")
	}
	for _, refused := range []string{"SELECT count(*) FROM pglock.distributed_locks", "SELECT count(*) FROM pglock.lock_waiters"} {
		if err := reader.pool.QueryRow(t.Context(), f.named(refused)).Scan(new(int)); err == nil {
			t.Errorf("%s: allowed", refused)
		}
	}
	release(t, held)
	release(t, next(t, got))
}
