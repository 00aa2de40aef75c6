package fencing_test

import (
	"errors"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglock/pglock-go/fencing"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/internal/schema"
)

const columns = "(id int PRIMARY KEY, v int)"

// writes are the ways to change a row with id 1 of a table that has it. They work in any order.
var writes = map[string]string{
	"INSERT":      "INSERT INTO %s (id, v) VALUES (100, 1)",
	"UPDATE":      "UPDATE %s SET v = 1 WHERE id = 1",
	"DELETE":      "DELETE FROM %s WHERE id = 1",
	"ON CONFLICT": "INSERT INTO %s (id, v) VALUES (1, 1) ON CONFLICT (id) DO UPDATE SET v = excluded.v",
	"UPDATE FROM": "UPDATE %s AS t SET v = 1 FROM (VALUES (1)) AS s (id) WHERE s.id = t.id",
	"CTE":         "WITH gone AS (DELETE FROM %s WHERE id = 1 RETURNING id) SELECT id FROM gone",
}

// mergeSince is the first server version that has MERGE.
const mergeSince = 150000

func (g fixture) allWrites() map[string]string {
	all := maps.Clone(writes)
	if g.serverVersion() >= mergeSince {
		all["MERGE matched"] = "MERGE INTO %s AS t USING (VALUES (1)) AS s (id) ON s.id = t.id WHEN MATCHED THEN UPDATE SET v = 1"
		all["MERGE not matched"] = "MERGE INTO %s AS t USING (VALUES (100)) AS s (id) ON s.id = t.id WHEN NOT MATCHED THEN INSERT (id, v) VALUES (100, 1)"
		all["MERGE delete"] = "MERGE INTO %s AS t USING (VALUES (1)) AS s (id) ON s.id = t.id WHEN MATCHED THEN DELETE"
	}
	return all
}

// TestEveryWriteIsFenced tries each kind of write without a grant, with the current one, and on a
// row that a later grant has written, in a plain table and a partitioned one.
func TestEveryWriteIsFenced(t *testing.T) {
	t.Parallel()
	each(t, map[string]string{"plain": "t", "odd database": "t", "odd names": `Odd "table" %s {id} 漢字`, "partitioned": "parted"}, func(t *testing.T, kind, name string) { //nolint:thelper // it is the test itself
		g := newFixture(t)
		if kind == "odd database" {
			g = newFixtureOn(t, pgtest.PoolOn(t, pgtest.OddDatabase(t)))
		}
		table := g.table(name, columns+map[string]string{"partitioned": " PARTITION BY LIST (id)"}[kind])
		if kind == "partitioned" {
			g.sql("CREATE TABLE pglock.p1 PARTITION OF " + table + " FOR VALUES IN (1); CREATE TABLE pglock.rest PARTITION OF " + table + " DEFAULT")
		}
		const column = `fence "token" %I`
		g.protect(table, fencing.WithColumn(column))
		early, late := g.grant("early", time.Minute), g.grant("late", time.Minute)
		reset := func(f fencing.Fence) {
			g.replica("DELETE FROM "+table, sprintf("INSERT INTO %s (id, v, %s) VALUES (1, 0, %d)", table, schema.Quote(column), f.Token))
		}
		for name, write := range g.allWrites() {
			sql := sprintf(write, table)
			reset(early)
			want(t, name+" without a grant", g.unbound(sql), fencing.ErrUnfenced)
			g.holds(table, "(1,0,%d)", early.Token)
			want(t, name+" with a grant", g.as(late, sql), nil)
			if got := g.dump(table); got == sprintf("(1,0,%d)", early.Token) {
				t.Errorf("%s with a grant wrote nothing", name)
			}
			if strings.Contains(write, "100") { // another row
				g.holds(table, "(1,0,%d) (100,1,%d)", early.Token, late.Token)
				continue
			}
			reset(late)
			err := g.as(early, sql)
			wantStale(t, name+" after a later grant", err, fencing.StaleError{Resource: "early", Token: early.Token, Current: late.Token})
			var pg *pgconn.PgError
			if !errors.As(err, &pg) || pg.TableName == "" || pg.SchemaName != g.schema {
				t.Errorf("%s: the error does not name the table: %#v", name, pg)
			}
			g.holds(table, "(1,0,%d)", late.Token)
		}
	})
}

// TestOnlyTriggersWriteTheTokenColumn: a value in a statement has no effect, so that no writer can
// lock others out, or let itself in.
func TestOnlyTriggersWriteTheTokenColumn(t *testing.T) {
	t.Parallel()
	g, table := newProtectedTable(t)
	f := g.grant("n", time.Minute)
	for _, sql := range []string{
		"INSERT INTO %s VALUES (1, 0, 99999)",
		"UPDATE %s SET fence_token = 99999 WHERE id = 1",
		"UPDATE %s SET fence_token = NULL WHERE id = 1",
		"UPDATE %s SET fence_token = 0 WHERE id = 1",
		"INSERT INTO %s VALUES (1, 0, 99999) ON CONFLICT (id) DO UPDATE SET fence_token = excluded.fence_token + 1",
	} {
		want(t, sql, g.as(f, sprintf(sql, table)), nil)
		g.holds(table, "(1,0,%d)", f.Token)
	}
	const copied = "COPY %s (id, fence_token) FROM STDIN"
	want(t, copied, g.send(g.bound(f), sprintf(copied, table)), nil)
	g.holds(table, "(1,0,%[1]d) (4,,%[1]d)", f.Token)
}

// TestPermissive: writes without a grant pass and keep the token, so that they do not admit an
// older one.
func TestPermissive(t *testing.T) {
	t.Parallel()
	g := newFixture(t)
	table := g.table("t", columns)
	g.protect(table, fencing.Permissive())
	early := g.grant("n", time.Minute)
	// The early holder's transaction is guarded by another lock, as if by mistake.
	late := g.grant("m", time.Minute)
	for _, sql := range []string{"INSERT INTO %s VALUES (1, 0, 5)", "UPDATE %s SET v = 1, fence_token = 5", "DELETE FROM %s", "INSERT INTO %s VALUES (1, 1)"} {
		want(t, sql, g.unbound(sprintf(sql, table)), nil)
	}
	g.holds(table, "(1,1,)")
	want(t, "a token of its own", g.unbound("INSERT INTO "+table+" VALUES (2, 0, 5)"), nil)
	g.holds(table, "(1,1,) (2,0,)")
	want(t, "DELETE", g.unbound("DELETE FROM "+table+" WHERE id = 2"), nil)
	required := g.table("required", "(id int PRIMARY KEY, fence_token bigint NOT NULL)")
	g.protect(required, fencing.Permissive())
	want(t, "a token of its own where there must be one", g.unbound("INSERT INTO "+required+" VALUES (1, 5)"), nil)
	g.holds(required, "(1,0)")
	want(t, "with a grant", g.as(late, sprintf("UPDATE %s SET v = 2", table)), nil)
	want(t, "without", g.unbound(sprintf("UPDATE %s SET v = 3, fence_token = 1", table)), nil)
	g.holds(table, "(1,3,%d)", late.Token)
	want(t, "with an older grant", g.as(early, sprintf("UPDATE %s SET v = 4", table)), fencing.ErrStale)
	want(t, "TRUNCATE without", g.unbound("TRUNCATE "+table), nil)

	named := g.table("named", columns)
	g.protect(named, fencing.Permissive(), fencing.NamedBy("n{id}"))
	want(t, "without a grant", g.unbound(sprintf("INSERT INTO %s VALUES (1)", named)), nil)
	want(t, "with the grant of another lock", g.as(late, sprintf("UPDATE %s SET v = 1", named)), fencing.ErrOtherLock)
}

// TestTriggersSeeTheFinalRow: they run after the table's other triggers.
func TestTriggersSeeTheFinalRow(t *testing.T) {
	t.Parallel()
	g := newFixture(t)
	table := g.table("t", columns)
	g.sql(`CREATE FUNCTION pglock.meddle() RETURNS trigger LANGUAGE plpgsql AS $$
	       BEGIN NEW.fence_token := 1; NEW.id := NEW.id + 1; RETURN NEW; END $$`)
	g.sql("CREATE TRIGGER zebra BEFORE INSERT OR UPDATE ON " + table + " FOR EACH ROW EXECUTE FUNCTION pglock.meddle()")
	g.protect(table, fencing.NamedBy("n{id}"))
	f := g.grant("n2", time.Minute)
	want(t, "by what it becomes", g.as(f, "INSERT INTO "+table+" VALUES (1, 0)"), nil)
	want(t, "by what it was", g.as(f, "INSERT INTO "+table+" VALUES (2, 0)"), fencing.ErrOtherLock)
	g.holds(table, "(2,0,%d)", f.Token)
}

// TestPreparedTransactions: a prepared transaction keeps its grant until it ends.
func TestPreparedTransactions(t *testing.T) {
	t.Parallel()
	g := newFixtureOn(t, prepared(t))
	table := g.table("t", columns)
	g.protect(table)
	f := g.grant("n", time.Minute)
	tx := g.bound(f)
	for _, s := range []string{"INSERT INTO " + table + " VALUES (1, 0)", "PREPARE TRANSACTION 'p'"} {
		g.exec(tx, s)
	}
	g.end("n")
	if g.free("n") {
		t.Error("another holder was granted the lock before the prepared transaction ends")
	}
	g.exec(g.writer, "COMMIT PREPARED 'p'")
	g.holds(table, "(1,0,%d)", f.Token)
}
