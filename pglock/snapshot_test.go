package pglock_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/pglock/pglock-go/fencing"
	"github.com/pglock/pglock-go/internal/locktest"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/internal/schema"
	"github.com/pglock/pglock-go/migrations"
	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/inspect"
	"github.com/pglock/pglock-go/pglock/leader"
	"github.com/pglock/pglock-go/pglock/once"
	"github.com/pglock/pglock-go/pglock/schedule"
)

// snapshot returns a Snapshot of everything.
func snapshot(t *testing.T, c *pglock.Client, q inspect.Query) inspect.Snapshot {
	t.Helper()
	s, err := c.Snapshot(t.Context(), q)
	must(t, err)
	return s
}

func lockNames(locks []inspect.Lock) []string {
	names := []string{}
	for _, l := range locks {
		names = append(names, l.Name)
	}
	return names
}

// TestSnapshot: a role that may only look sees one of everything.
func TestSnapshot(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	f := on(t, url)
	role := "reader " + pgtest.SchemaName(t)
	asReader := locktest.PoorRole(t, url, role)
	must(t, migrations.Up(t.Context(), f.pool, migrations.WithSchema(f.schema), migrations.WithReader(role)))
	c := f.open()
	held := try(t, c, "held", pglock.WithHolder("a"), pglock.WithLabels(map[string]string{"team": "x"}))
	next := f.waits(f.open(), "held", pglock.WithHolder("b"))
	defer func() { release(t, held); release(t, <-next) }()
	release(t, try(t, c, "free"))
	sem := tried(t, c.Semaphore("sem", 3).Weight(2))
	defer release(t, sem)
	e, err := leader.New(c, "election", leader.WithPayload("10.0.0.7:8080"))
	must(t, err)
	term, err := e.Campaign(t.Context(), "10.0.0.7:8080")
	must(t, err)
	defer func() { must(t, term.Resign(context.Background())) }()
	job, err := schedule.New(c, "job")
	must(t, err)
	const period = 1000 * time.Hour // no tick is due while the test runs
	ticks := schedule.Every(period)
	due, err := schedule.Due(ticks, time.Now())
	must(t, err)
	must(t, job.RunDue(t.Context(), ticks, func(context.Context, *pglock.Lease) error { return nil }))
	if s := snapshot(t, c, inspect.Query{}); len(s.Schedules) != 1 || !s.Schedules[0].Next.Equal(due.Add(period)) || s.Schedules[0].Late(due.Add(2*period)) != period {
		t.Errorf("schedules are %+v", s.Schedules)
	}
	run, err := job.Begin(t.Context(), due.Add(time.Millisecond))
	must(t, err)
	defer func() { must(t, run.Abandon(context.Background())) }()
	_, err = once.Do(t.Context(), c, "payment", make([]byte, 32), func(context.Context, *pglock.Lease) (int, error) {
		return 0, context.DeadlineExceeded // the outcome is unknown
	})
	if err == nil {
		t.Fatal("an effect whose outcome is unknown succeeds")
	}
	locked, stop := make(chan struct{}), make(chan struct{})
	go func() {
		check(t, c.DoTx(context.Background(), "tx", func(context.Context, pgx.Tx) error { close(locked); <-stop; return nil }))
	}()
	ends(t, "the transaction locks", locked)
	defer close(stop)
	until(f, "the waiter waits", 1, "SELECT count(*) FROM pglock.locks_waiting")
	guard, err := f.pool.Begin(t.Context())
	must(t, err)
	defer func() { must(t, guard.Rollback(context.Background())) }()
	must(t, held.Guard(t.Context(), guard))
	backend := guard.Conn().PgConn().PID()

	reader, err := pglock.Open(t.Context(), asReader, pglock.WithSchema(f.schema))
	must(t, err)
	t.Cleanup(func() { _ = reader.Close(context.Background()) })
	s := snapshot(t, reader, inspect.Query{Filter: inspect.Filter{Held: true}})
	if got := lockNames(s.Locks); !slices.Equal(got, []string{"election", "held", "job", "sem"}) {
		t.Errorf("held are %q", got)
	}
	if s.Matching != 4 || s.Names < 5 || s.Server.Held != 4 || s.Server.Waiting != 1 {
		t.Errorf("%d match of %d names; %+v", s.Matching, s.Names, s.Server)
	}
	if v := s.Server; s.Server.Started != 1 || v.Database != value[string](f, "SELECT current_database()") || v.User != role || v.Sessions < 2 {
		t.Errorf("%+v", v)
	}
	if l := s.Locks[0]; l.Labels["payload"] != "10.0.0.7:8080" {
		t.Errorf("the election is %+v", l)
	}
	if len(s.Schedules) != 1 || s.Schedules[0].Job != "job" || !s.Schedules[0].Last.Equal(due) || s.Schedules[0].Running.IsZero() {
		t.Errorf("schedules are %+v, %v", s.Schedules, due)
	}
	if len(s.Once) != 1 || s.Once[0].Key != "payment" || s.Once[0].Running || s.Once[0].Token == 0 {
		t.Errorf("effects are %+v", s.Once)
	}
	if holder := s.Locks[0].Holder; !slices.ContainsFunc(s.Sessions, func(s inspect.Session) bool { return schema.SessionOf(s.Application, holder) }) {
		t.Errorf("sessions are %+v", s.Sessions)
	}
	if g := s.Guards; len(g) != 1 || g[0].Name != "held" || g[0].Ended || g[0].PID != backend || g[0].Query != "" {
		t.Errorf("guards are %+v, want process %d", g, backend)
	}
	found := false
	for _, u := range s.Advisory {
		found = found || u.Key == c.Key("tx") && u.Granted && u.PID > 0
	}
	if !found {
		t.Errorf("advisory locks are %+v", s.Advisory)
	}
	if _, err := reader.Acquire(t.Context(), "x", pglock.WithWait(0)); err == nil {
		t.Error("a reader is granted a lock")
	}
}

// TestSnapshotIsOrderedAndLimited: the first locks in each order, and how many there are.
func TestSnapshotIsOrderedAndLimited(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.sql(`INSERT INTO pglock.distributed_locks (name, token, version, ticket, holder, acquired_at, expires_at)
		SELECT 'lock' || i, i, 1, 1, 'h' || i, now() - i * interval '1 s', now() + (100 - i % 10) * interval '1 min' FROM generate_series(1, 9) AS i`)
	f.sql(`INSERT INTO pglock.lock_waiters (name, client, expires_at, ticket)
		SELECT 'lock' || i, j::text, now() + interval '1 h', 10 * i + j FROM generate_series(3, 5) AS i, generate_series(4, i) AS j`)
	c := f.open()
	for order, want := range map[inspect.Order][]string{
		inspect.ByName: {"lock1", "lock2", "lock3"}, inspect.ByWaiters: {"lock5", "lock4", "lock1"},
		inspect.ByHeld: {"lock9", "lock8", "lock7"}, inspect.ByRemaining: {"lock9", "lock8", "lock7"},
	} {
		s := snapshot(t, c, inspect.Query{Order: order, Limit: 3})
		if got := lockNames(s.Locks); !slices.Equal(got, want) || s.Matching != 9 || s.Names != 9 {
			t.Errorf("by %q: %q, %d of %d", order, got, s.Matching, s.Names)
		}
	}
	f.sql(`INSERT INTO pglock.distributed_locks (name, token, version, ticket, acquired_at, expires_at) VALUES ('free', 99, 1, 1, now(), '-infinity')`)
	if got := lockNames(snapshot(t, c, inspect.Query{Order: inspect.ByRemaining}).Locks); len(got) != 10 || got[0] != "lock9" || got[9] != "free" {
		t.Errorf("by remaining: %q", got)
	}
	f.sql("DELETE FROM pglock.distributed_locks WHERE name = 'free'")
	s := snapshot(t, c, inspect.Query{Limit: 3, Offset: 7})
	if got := lockNames(s.Locks); !slices.Equal(got, []string{"lock8", "lock9"}) || s.Matching != 9 {
		t.Errorf("after seven others: %q of %d", got, s.Matching)
	}
	s = snapshot(t, c, inspect.Query{Filter: inspect.Filter{Waiting: true}})
	if got := lockNames(s.Locks); !slices.Equal(got, []string{"lock4", "lock5"}) {
		t.Errorf("somebody waits for %q", got)
	}
	if got := namesOf(t, c.Locks(t.Context(), inspect.Filter{Waiting: true})); !slices.Equal(got, []string{"lock4", "lock5"}) {
		t.Errorf("Locks: somebody waits for %q", got)
	}
	if s := snapshot(t, c, inspect.Query{Filter: inspect.Filter{Prefix: "none"}}); len(s.Locks)+s.Matching != 0 || s.Names != 9 {
		t.Errorf("%+v", s)
	}
	f.sql(`UPDATE pglock.distributed_locks SET labels = '{"tick": "2026-11-26T12:00:00Z", "next": "2026-11-26T13:00:00Z"}' WHERE name = 'lock3'`)
	f.sql(`UPDATE pglock.distributed_locks SET labels = '{"tick": "x"}' WHERE name = 'lock4'`)
	first := inspect.Schedule{Job: "lock3", Running: time.Date(2026, 11, 26, 12, 0, 0, 0, time.UTC), Next: time.Date(2026, 11, 26, 13, 0, 0, 0, time.UTC), Holder: "h3"}
	if s := snapshot(t, c, inspect.Query{Filter: inspect.Filter{Elections: true}}); len(s.Schedules) != 1 || s.Schedules[0] != first {
		t.Errorf("the first tick of a job is %+v", s.Schedules)
	}
	_, err := c.Snapshot(t.Context(), inspect.Query{Limit: -1})
	fails(t, "a negative limit", err, pglock.ErrInvalidOption)
	_, err = c.Snapshot(t.Context(), inspect.Query{Offset: -1})
	fails(t, "a negative offset", err, pglock.ErrInvalidOption)
}

// TestSnapshotOfADB: a client of a *sql.DB sees advisory locks too.
func TestSnapshotOfADB(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	db := stdlib.OpenDB(*f.pool.Config().ConnConfig)
	t.Cleanup(func() { _ = db.Close() })
	c, err := pglock.OpenDB(t.Context(), db, pglock.WithSchema(f.schema))
	must(t, err)
	t.Cleanup(func() { check(t, c.Close(context.Background())) })
	must(t, c.DoTx(t.Context(), "tx", func(context.Context, pgx.Tx) error {
		if s := snapshot(t, c, inspect.Query{}); len(s.Advisory) == 0 {
			t.Error("the advisory lock is not seen")
		}
		return nil
	}))
}

// TestASnapshotOfManyLocks takes less than a second, and the memory of its limit.
func TestASnapshotOfManyLocks(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.sql(`INSERT INTO pglock.distributed_locks (name, token, version, holder, acquired_at, expires_at)
		SELECT 'lock ' || i, i, 1, 'h' || i % 100, now(), now() + interval '1 h' FROM generate_series(1, 100000) AS i`)
	f.sql("ANALYZE pglock.distributed_locks")
	c := f.open()
	began := time.Now()
	s := snapshot(t, c, inspect.Query{Order: inspect.ByWaiters})
	t.Logf("%v", time.Since(began))
	atMost(t, 5*time.Second, "a snapshot", began) // a second on an idle machine
	if len(s.Locks) != 500 || s.Matching != 100000 {
		t.Errorf("%d of %d", len(s.Locks), s.Matching)
	}
}

// TestFullServer: a fifth of the connections is left to act.
func TestFullServer(t *testing.T) {
	t.Parallel()
	for n, want := range map[int]bool{0: false, 79: false, 80: true, 100: true} {
		if s := (inspect.Server{Connections: n, MaxConnections: 100}); s.Full() != want {
			t.Errorf("%d of 100: %t", n, s.Full())
		}
	}
	if (inspect.Server{}).Full() {
		t.Error("a server that nothing is known of is full")
	}
}

// TestTree: who waits for whom, with cycles. Only nested calls for locks with one holder are
// certain to be one.
func TestTree(t *testing.T) {
	t.Parallel()
	lock := func(name, holder string, waiters ...string) inspect.Lock {
		l := inspect.Lock{Name: name, Holder: holder, Remaining: time.Minute}
		for _, w := range waiters {
			l.Waiters = append(l.Waiters, inspect.Waiter{Holder: w})
		}
		return l
	}
	shared := lock("shared", "", "w")
	shared.Grants = []inspect.Grant{{Holder: "r1"}, {Holder: "r2"}}
	s := inspect.Snapshot{Locks: []inspect.Lock{
		lock("b", "y", "z"), lock("a", "x", "y", "v"), lock("c", "z"), shared, lock("alone", "q"),
		lock("p1", "p", "o"), lock("p2", "o", "p"), // p waits for o, and o for p
		lock("n1", "m", "n"), lock("n2", "n"), lock("n3", "n"),
	}}
	s.Locks[len(s.Locks)-1].Token = 7
	s.Nested = []inspect.NestedWait{{Holder: "n", Names: []string{"n1"}, Holds: []fencing.Token{7}}} // n2 is of another call
	nested := func(name, holder, waiter, next string) {                                              // it holds name, and the waiter waits for it while it holds next
		token := fencing.Token(len(s.Locks) + 100)
		l := lock(name, holder, waiter)
		l.Token = token
		s.Locks = append(s.Locks, l)
		s.Nested = append(s.Nested, inspect.NestedWait{Holder: waiter, Names: []string{name}, Holds: []fencing.Token{token + map[string]fencing.Token{"next": 1, "last": -1}[next]}})
	}
	nested("d1", "d", "e", "next")
	nested("d2", "e", "d", "last")
	nested("r1", "f", "g", "next")
	nested("r2", "g", "f", "last")
	s.Locks[len(s.Locks)-1].Grants = []inspect.Grant{{Holder: "g", Token: fencing.Token(len(s.Locks) + 99)}, {Holder: "another"}}
	var got []string
	for _, b := range s.Tree() {
		got = append(got, fmt.Sprintf("%d%s%v%s%d%v%t", b.Depth, b.Name, b.Holders, b.Waiter.Holder, b.Place, b.Holds, b.Cycle)+map[bool]string{true: " perhaps"}[b.Perhaps])
	}
	want := []string{
		"0a[x]0[]false", "1a[]y1[b]false", "2b[y]0[]false", "3b[]z1[c]false", "1a[]v2[]false",
		"0shared[r1 r2]0[]false", "1shared[]w1[]false",
		"0n1[m]0[]false", "1n1[]n1[n3]false",
		"0p1[p]0[]false", "1p1[]o1[p2]false", "2p2[o]0[]false", "3p2[]p1[p1]false", "4p1[p]0[]false perhaps",
		"0d1[d]0[]false", "1d1[]e1[d2]false", "2d2[e]0[]false", "3d2[]d1[d1]false", "4d1[d]0[]true",
		"0r1[f]0[]false", "1r1[]g1[r2]false", "2r2[g another]0[]false", "3r2[]f1[r1]false", "4r1[f]0[]false perhaps",
	}
	if !slices.Equal(got, want) {
		t.Errorf("the tree is\n%q, want\n%q", got, want)
	}
}

// TestLargeTextsHideNothing: a role that may acquire locks writes texts and labels of megabytes into three rows. All
// locks are listed, those three with less text.
func TestLargeTextsHideNothing(t *testing.T) {
	t.Parallel()
	f := on(t, pgtest.Database(t))
	c := f.open()
	for _, name := range []string{"large 1", "large 2", "plain"} {
		try(t, c, name, pglock.WithHolder("h"))
	}
	reader := tried(t, c.Reader("large 3"))
	ctx, leave := context.WithCancel(t.Context())
	left := leaving(ctx, c.Lock("large 1"))
	until(f, "waiters", 1, "SELECT count(*)::int FROM pglock.lock_waiters WHERE ticket > 0")
	user := fixture{t, pgtest.UserPool(t, f.pool, f.schema), f.schema}
	const mb = "repeat('x', 2000000)"
	user.sql("UPDATE pglock.distributed_locks SET holder = " + mb + ", labels = jsonb_build_object('tick', '2026-01-01T' || " + mb + ", 'next', " + mb + "), last_holder = " + mb +
		", last_end = " + mb + ", release_request = " + mb + ", revoked_reason = " + mb + " WHERE name LIKE 'large%' AND holder IS NOT NULL")
	user.sql("UPDATE pglock.lock_permits SET holder = " + mb + ", labels = jsonb_build_object('a', " + mb + "), release_request = " + mb)
	user.sql("UPDATE pglock.lock_waiters SET holder = " + mb)
	for _, view := range []string{"locks_held", "locks_waiting", "once_started", "schedules"} {
		if size := value[int](f, "SELECT coalesce(sum(octet_length(v::text)), 0)::int FROM pglock."+view+" AS v"); size > 100_000 {
			t.Errorf("%s has %d bytes", view, size)
		}
	}
	s, err := c.Snapshot(t.Context(), inspect.Query{})
	must(t, err)
	size, found := len(fmt.Sprintf("%+v", s)), 0
	for _, l := range s.Locks {
		if l.Name == "plain" && l.Holder == "h" {
			found++
		}
	}
	if found != 1 || len(s.Locks) < 4 || size > 100_000 {
		t.Errorf("%d locks of %d bytes in all, the plain one %d times", len(s.Locks), size, found)
	}
	leave()
	t.Log("canceled:", <-left)
	release(t, reader)
}

// TestMarksHideNoJob: a writer, who may raise any mark, can't push jobs that have failed or have a next tick out of the
// list by marks of jobs that there are not.
func TestMarksHideNoJob(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	writer := fixture{t, pgtest.WriterPool(t, f.pool, f.schema), f.schema}
	f.sql("INSERT INTO pglock.scheduled_jobs (job, failed_tick, attempts, error) VALUES ('failed', 1000000, 1, 'no paper')")
	f.sql("INSERT INTO pglock.distributed_locks (name, token, version, acquired_at, expires_at, labels) VALUES ('late', 1, 1, now(), '-infinity', '{\"next\": \"2026-01-01T00:00:00Z\"}')")
	f.sql("SELECT pglock.advance('last tick: late', 1000000)")
	writer.sql("SELECT pglock.advance('last tick: ' || i, 4000000000000000) FROM generate_series(1, 10) AS i")
	var jobs []string
	for _, s := range snapshot(t, f.open(), inspect.Query{Limit: 2}).Schedules {
		jobs = append(jobs, s.Job)
	}
	if !slices.Equal(jobs, []string{"late", "failed"}) {
		t.Errorf("%q", jobs)
	}
}
