package leasetable_test

import (
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglock/pglock-go/fencing"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/internal/schema"
	"github.com/pglock/pglock-go/leasetable"
)

// request returns a request for name, with an ID that ends in id.
func request(name, id, holder string) *leasetable.Request {
	return &leasetable.Request{
		Name: name, ID: "00000000-0000-4000-8000-00000000000" + id, Holder: holder, Labels: "{}",
		TTL: time.Minute, Ticket: leasetable.NoTicket,
	}
}

func one(r *leasetable.Request) []*leasetable.Request { return []*leasetable.Request{r} }

// TestALockFromGrantToPruning runs each operation of the table once, and checks its answer.
func TestALockFromGrantToPruning(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	name := pgtest.Schema(t, pool)
	table := leasetable.New(name, pooled{pool})
	ctx := t.Context()
	if err := table.LiftTokens(ctx, "n"); err != nil {
		t.Fatal(err)
	}
	first, second := request("n", "1", "first"), request("n", "2", "second")
	if g, err := table.AcquireFast(ctx, one(first)); err != nil || g[0].Outcome != "" {
		t.Errorf("the fast path on a new name: %+v, %v", g, err)
	}
	grants, err := table.AcquireFull(ctx, one(first))
	granted := grants[0]
	if err != nil || granted.Outcome != leasetable.Granted || granted.Token == 0 || granted.Sent.IsZero() {
		t.Fatalf("%+v, %v", grants, err)
	}
	if g, err := table.AcquireFast(ctx, one(second)); err != nil || g[0].Outcome != "" {
		t.Errorf("the fast path on a held lock: %+v, %v", g, err)
	}
	grants, err = table.AcquireFull(ctx, one(second))
	if g := grants[0]; err != nil || g.Outcome != leasetable.Busy || g.Holder != "first" || g.Token != granted.Token || g.Remaining <= 0 {
		t.Errorf("the full statement on a held lock: %+v, %v", g, err)
	}
	position, err := table.Join(ctx, "client", &leasetable.Request{Name: "n", Holder: "holder", ID: second.ID}, time.Second, false)
	if err != nil || position.Ticket <= int64(granted.Token) || position.Ahead != 0 || position.Free || position.Remaining <= 0 {
		t.Errorf("a ticket: %+v, %v", position, err)
	}
	ours := leasetable.Ticket{Client: "client", Names: []string{"n"}, Number: position.Ticket, State: position.State}
	other := leasetable.Ticket{Client: "client", Names: []string{"n", "other"}, Number: position.Ticket, State: position.State}
	seen, err := table.RefreshTickets(ctx, []leasetable.Ticket{ours, other}, false)
	if err != nil || seen[0].Ticket != ours.Number || seen[0].Free || seen[0].Remaining <= 0 || seen[0].State != leasetable.Queued || seen[1].State != leasetable.Lost {
		t.Errorf("refreshed %+v, %v", seen, err)
	}
	fence := fencing.Fence{Schema: name, Name: "n", Token: granted.Token}
	renewed, err := table.Renew(ctx, []leasetable.Extension{{Fence: fence, TTL: time.Hour}})
	if err != nil || renewed[fence].Outcome != leasetable.Granted || renewed[fence].Remaining < time.Minute {
		t.Errorf("renewed %+v, %v", renewed, err)
	}
	released, notified, err := table.Release(ctx, fence, 0)
	if err != nil || !released || !notified {
		t.Errorf("released %v, notified %v, %v", released, notified, err)
	}
	if err := table.LeaveQueue(ctx, ours); err != nil {
		t.Error(err)
	}
	if g, err := table.AcquireFast(ctx, one(second)); err != nil || g[0].Outcome != leasetable.Granted || g[0].Token <= granted.Token {
		t.Errorf("the fast path on a free lock: %+v, %v", g, err)
	}
	if revoked, err := table.Revoke(ctx, second); err != nil || !revoked {
		t.Errorf("revoked %v, %v", revoked, err)
	}
	rows, _ := pool.Query(ctx, schema.Render("SELECT last_end FROM pglock.distributed_locks WHERE holder IS NULL", name))
	ends, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil || !slices.Equal(ends, []string{"released"}) {
		t.Errorf("the row: %q, %v", ends, err)
	}
	if p, err := table.Prune(ctx, 0, ""); err != nil || p.Deleted != 1 || !p.Done || p.Highest.Name != "n" {
		t.Errorf("pruned %+v, %v", p, err)
	}
}

// TestGrantsAreWrittenAlike compares the three statements that write a grant to a free row:
// they set the same columns in the same way, lock the row in the same way, and heed the queue. They
// record the end of the last grant, or leave a lock whose last grant has expired alone.
func TestGrantsAreWrittenAlike(t *testing.T) {
	t.Parallel()
	parts := map[string]*regexp.Regexp{
		"token and version": regexp.MustCompile(`SET token = greatest\(pglock\.next_fencing_token\(\), l\.token \+ 1\), version = pglock\.next_version\(l\.version\),`),
		"times":             regexp.MustCompile(`acquired_at = clock_timestamp\(\), expires_at = clock_timestamp\(\) \+ \S+ \* interval '1 microsecond', release_request = NULL,`),
		"the last grant":    regexp.MustCompile(`release_request = NULL, last_holder = [^=]*, last_end = [^=]*, ended_at = |f\.holder IS NULL|octet_length\(l\.holder\) >= 0\) IS NOT TRUE`),
		"request":           regexp.MustCompile(`, request = \S+, holder = \S+, labels = \S+`),
		"the queue":         regexp.MustCompile(`NOT EXISTS \(SELECT FROM pglock\.queue\(\S+, [lf]\.ticket\) AS w WHERE `),
		"the row lock":      regexp.MustCompile(`FOR UPDATE (OF l )?SKIP LOCKED`),
		"durability":        regexp.MustCompile(`pglock\.commit_durably\(\)`),
	}
	for _, name := range []string{"acquire_fast", "acquire_fast_batch", "handoff"} {
		text := strings.Join(strings.Fields(leasetable.Statements(schema.Default)[name]), " ")
		text = strings.ReplaceAll(text, schema.Quote(schema.Default)+".", "pglock.")
		for part, pattern := range parts {
			if n := len(pattern.FindAllString(text, -1)); n != 1 {
				t.Errorf("%s.sql: %s: found %d times", name, part, n)
			}
		}
	}
}

// TestAReleaseThatFailsAtItsCommitPromisesNothing: the server sends the row of the answer before it commits,
// and the release of a permit is told to have happened only after the commit.
func TestAReleaseThatFailsAtItsCommitPromisesNothing(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	name := pgtest.Schema(t, pool)
	table := leasetable.New(name, pooled{pool})
	r := request("n", "1", "h")
	r.Permits = leasetable.Permits{Capacity: 2, Weight: 1}
	granted, err := table.AcquireSlots(t.Context(), r)
	if err != nil || granted.Outcome != leasetable.Granted {
		t.Fatalf("%+v, %v", granted, err)
	}
	for _, statement := range []string{
		"CREATE FUNCTION pglock.fail() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RAISE EXCEPTION ''at the commit''; END'",
		`CREATE CONSTRAINT TRIGGER late AFTER DELETE ON pglock.lock_permits DEFERRABLE INITIALLY DEFERRED
		 FOR EACH ROW EXECUTE FUNCTION pglock.fail()`,
	} {
		if _, err := pool.Exec(t.Context(), schema.Render(statement, name)); err != nil {
			t.Fatal(err)
		}
	}
	for _, shared := range []bool{true, false} {
		if notified, err := table.ReleasePermits(t.Context(), []string{"n"}, granted.Token, shared); err == nil || notified != nil {
			t.Errorf("a release that failed, shared: %v: released %v, %v", shared, notified, err)
		}
	}
	if _, err := pool.Exec(t.Context(), schema.Render("DROP TRIGGER late ON pglock.lock_permits", name)); err != nil {
		t.Fatal(err)
	}
	notified, err := table.ReleasePermits(t.Context(), []string{"n"}, granted.Token, true)
	if _, released := notified["n"]; err != nil || !released {
		t.Errorf("its repetition: released %v, %v", notified, err)
	}
}

// TestRevokeEndsItsOwnRequestAlone: a call that does not know whether its revocation had an effect repeats it,
// when another request may have been granted the lock.
func TestRevokeEndsItsOwnRequestAlone(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	name := pgtest.Schema(t, pool)
	table := leasetable.New(name, pooled{pool})
	for kind, permits := range map[string]leasetable.Permits{
		"one holder": {}, "some permits": {Capacity: 2, Weight: 1}, "all permits": {Capacity: 2, Weight: 2},
	} {
		granted := func(id string) (*leasetable.Request, fencing.Token) {
			t.Helper()
			r := request(kind, id, "h")
			r.Permits = permits
			g, err := table.AcquireSlots(t.Context(), r)
			if err != nil || g.Outcome != leasetable.Granted {
				t.Fatalf("%s: %+v, %v", kind, g, err)
			}
			return r, g.Token
		}
		revoke := func(r *leasetable.Request, want bool) {
			t.Helper()
			if revoked, err := table.Revoke(t.Context(), r); err != nil || revoked != want {
				t.Errorf("%s: revoked %v, %v; want %v", kind, revoked, err, want)
			}
		}
		first, _ := granted("1")
		revoke(first, true)
		revoke(first, false)
		second, token := granted("2")
		revoke(first, false)
		grants := []leasetable.Extension{{Fence: fencing.Fence{Schema: name, Name: kind, Token: token}, TTL: time.Minute}}
		if renewed, err := table.Renew(t.Context(), grants); err != nil || renewed[grants[0].Fence].Outcome != leasetable.Granted {
			t.Errorf("%s: the grant of another request: %+v, %v", kind, renewed, err)
		}
		revoke(second, true)
	}
}

// TestALookKnowsWhenTheFirstGrantEnds: a waiter for a permit sleeps until the first one of several grants can
// expire, and a look that names a later time would make it late.
func TestALookKnowsWhenTheFirstGrantEnds(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	name := pgtest.Schema(t, pool)
	table := leasetable.New(name, pooled{pool})
	permits := leasetable.Permits{Capacity: 4, Weight: 1}
	for id, hours := range map[string]time.Duration{"1": 3, "2": 1, "3": 2, "4": 4} {
		r := request("s", id, "h")
		r.Permits, r.TTL = permits, hours*time.Hour
		if g, err := table.AcquireSlots(t.Context(), r); err != nil || g.Outcome != leasetable.Granted {
			t.Fatalf("%+v, %v", g, err)
		}
	}
	r := request("s", "5", "w")
	r.Permits = leasetable.Permits{Capacity: 4, Weight: 2}
	p, err := table.Join(t.Context(), "client", r, 0, true)
	if err != nil {
		t.Fatal(err)
	}
	endsIn := func(most time.Duration) {
		t.Helper()
		seen, err := table.RefreshTickets(t.Context(), []leasetable.Ticket{{Client: "client", Names: []string{"s"}, Number: p.Ticket, State: p.State}}, true)
		if err != nil || seen[0].Free || seen[0].Remaining > most || seen[0].Remaining < most-time.Hour/2 {
			t.Errorf("%+v, %v; want %v at most", seen, err, most)
		}
	}
	endsIn(time.Hour)
	// One that has expired makes too little room.
	if _, err := pool.Exec(t.Context(), schema.Render("UPDATE pglock.lock_permits SET expires_at = clock_timestamp() WHERE expires_at < clock_timestamp() + interval '1 h'", name)); err != nil {
		t.Fatal(err)
	}
	endsIn(2 * time.Hour)
}
