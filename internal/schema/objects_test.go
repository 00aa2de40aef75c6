package schema_test

import (
	"context"
	"flag"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/internal/schema"
	"github.com/pglock/pglock-go/migrations"
)

// begun is a transaction in which another one is a savepoint.
type begun struct{ pgx.Tx }

func (b begun) BeginTx(ctx context.Context, _ pgx.TxOptions) (pgx.Tx, error) { return b.Begin(ctx) }

var update = flag.Bool("update", false, "write objects.txt: go test ./internal/schema -run TestObjects -update")

// migrated returns the objects that the migrations make in a schema of that name.
func migrated(t *testing.T, pool *pgxpool.Pool, name string) []schema.Object {
	t.Helper()
	if err := migrations.Up(t.Context(), pool, migrations.WithSchema(name)); err != nil && !*update {
		t.Fatal(err)
	}
	found, err := schema.Objects(t.Context(), pool, name)
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// first returns the first line of a that b does not have, and the other way round.
func first(a, b string) string {
	in := func(a, b string) string {
		for line := range strings.Lines(a) {
			if !strings.Contains(b, line) {
				return line
			}
		}
		return ""
	}
	return in(a, b) + in(b, a)
}

// TestObjects compares what the migrations make on this server with objects.txt, in schemas whose
// names are quoted in each way, and in a database with settings that few others have.
func TestObjects(t *testing.T) {
	t.Parallel()
	plain, odd := pgtest.PoolOn(t, pgtest.Database(t)), pgtest.PoolOn(t, pgtest.OddDatabase(t))
	lines := func(objects []schema.Object) string {
		var all []string
		for _, o := range objects {
			if o.Name != "" {
				all = append(all, o.String())
			}
		}
		slices.Sort(all)
		return strings.Join(all, "")
	}
	found := lines(migrated(t, plain, "pglock"))
	if *update {
		if err := os.WriteFile("objects.txt", []byte(found), 0o666); err != nil {
			t.Fatal(err)
		}
		return // the test binary has the file of before
	}
	golden, err := os.ReadFile("objects.txt")
	if err != nil || found != string(golden) {
		t.Fatalf("%v, the migrations make other objects than objects.txt has: run go test ./internal/schema -run TestObjects -update\n%s", err, first(found, string(golden)))
	}
	for _, name := range []string{"pglock", "l", "r", "select", `it's "a" \schema`, "Öde"} {
		for _, pool := range []*pgxpool.Pool{plain, odd} {
			objects := migrated(t, pool, name)
			if got := lines(objects); got != found {
				t.Errorf("schema %q has other objects:\n%s", name, first(got, found))
			}
			if differing, public := schema.Differences(objects, migrations.FS, name); len(differing)+len(public) > 0 {
				t.Errorf("schema %q: %q, %q", name, differing, public)
			}
		}
	}
}

// TestDifferences: each change of an object that a program depends on is found and named, and more
// objects do no harm.
func TestDifferences(t *testing.T) { //nolint:tparallel // one schema is changed by one after the other
	t.Parallel()
	pool := pgtest.PoolOn(t, pgtest.Database(t))
	before := migrated(t, pool, "pglock")
	bodies := 0
	for _, o := range before {
		if o.Body == "" || o.Name == "" || regexp.MustCompile(`^function (pglock_schema_version|wal_timeline|cluster_identifier|next_ticket|next_fencing_token)\(`).MatchString(o.Name) {
			continue // it is another version, or depends on the server
		}
		bodies++
		changed := slices.Clone(before)
		i := slices.Index(changed, o)
		changed[i].Body += " "
		if got, _ := schema.Differences(changed, migrations.FS, "pglock"); !slices.Equal(got, []string{o.Name + " differs"}) {
			t.Errorf("another body of %s: %q", o.Name, got)
		}
	}
	if bodies < 60 {
		t.Errorf("only %d functions have bodies", bodies)
	}
	for change, want := range map[string]string{
		"DROP FUNCTION pglock.share_grant(text)":                                               "function share_grant(text) is missing",
		"ALTER FUNCTION pglock.share_grant(text) STABLE":                                       "function share_grant(text) differs",
		"ALTER FUNCTION pglock.guard(text, bigint) SECURITY INVOKER":                           "function guard(text, int8) differs",
		"ALTER FUNCTION pglock.guard(text, bigint) RESET search_path":                          "function guard(text, int8) differs",
		"ALTER TABLE pglock.once_keys DROP holder CASCADE":                                     "column once_keys.holder is missing",
		"ALTER TABLE pglock.nested_waits ALTER holder TYPE varchar(5)":                         "column nested_waits.holder differs",
		"ALTER TABLE pglock.nested_waits ALTER holder TYPE text COLLATE \"POSIX\"":             "column nested_waits.holder differs",
		"ALTER TABLE pglock.lock_waiters ALTER since DROP DEFAULT":                             "column lock_waiters.since differs",
		"ALTER TABLE pglock.distributed_locks ALTER labels DROP NOT NULL":                      "column distributed_locks.labels differs",
		"ALTER TABLE pglock.lock_permits DROP CONSTRAINT lock_permits_name_request_key":        "constraint lock_permits_name_request_key of lock_permits is missing",
		"ALTER DOMAIN pglock.lock_name DROP CONSTRAINT lock_name_check":                        "constraint lock_name_check of lock_name is missing",
		"DROP INDEX pglock.last_ticks":                                                         "relation last_ticks is missing",
		"DROP VIEW pglock.locks_waiting":                                                       "relation locks_waiting is missing",
		"DROP SEQUENCE pglock.fencing_tokens CASCADE":                                          "relation fencing_tokens is missing",
		"ALTER TYPE pglock.wait_edge DROP ATTRIBUTE waiter CASCADE":                            "column wait_edge.waiter is missing",
		"ALTER TABLE pglock.once_keys ADD more text":                                           "",
		"CREATE INDEX more ON pglock.distributed_locks (holder)":                               "",
		"CREATE FUNCTION pglock.more() RETURNS int LANGUAGE sql AS 'SELECT 1'":                 "",
		"ALTER TABLE pglock.distributed_locks SET (fillfactor = 90), ALTER token SET NOT NULL": "",
	} {
		t.Run(change, func(t *testing.T) {
			tx, err := pool.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = tx.Rollback(t.Context()) }()
			if _, err := tx.Exec(t.Context(), change); err != nil {
				t.Fatal(err)
			}
			found, err := schema.Objects(t.Context(), begun{tx}, "pglock")
			if err != nil {
				t.Fatal(err)
			}
			got, _ := schema.Differences(found, migrations.FS, "pglock")
			if (want != "") != slices.Contains(got, want) || want == "" && len(got) > 0 {
				t.Errorf("got %q, want %q", got, want)
			}
			if text, _ := schema.Differs("pglock", got); want != "" && len(got) == 1 && !strings.Contains(text, want) {
				t.Errorf("the error is %q", text)
			}
		})
	}
}
