package leasetable_test

import (
	"regexp"
	"strings"
	"testing"
	"time"

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

// TestGrantsAreWrittenAlike compares the three statements that write a grant to a free row:
// they set the same columns in the same way, lock the row in the same way, and heed the queue. They
// record the end of the last grant, or leave a lock whose last grant has expired alone.
func TestGrantsAreWrittenAlike(t *testing.T) {
	t.Parallel()
	parts := map[string]*regexp.Regexp{
		"token and version": regexp.MustCompile(`SET token = greatest\(pglock\.next_fencing_token\(\), l\.token \+ 1\), version = pglock\.next_version\(l\.version\),`),
		"times":             regexp.MustCompile(`acquired_at = clock_timestamp\(\), expires_at = clock_timestamp\(\) \+ \S+ \* interval '1 microsecond', release_request = NULL,`),
		"the last grant":    regexp.MustCompile(`release_request = NULL, last_holder = [^=]*, last_end = [^=]*, ended_at = |[fl]\.holder IS NULL`),
		"request":           regexp.MustCompile(`, request = \S+, holder = \S+, labels = \S+`),
		"the queue":         regexp.MustCompile(`NOT EXISTS \(SELECT FROM pglock\.queue\(\S+, [lf]\.ticket\) AS w WHERE `),
		"the row lock":      regexp.MustCompile(`FOR UPDATE SKIP LOCKED`),
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
