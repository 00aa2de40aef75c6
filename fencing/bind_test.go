package fencing_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglock/pglock-go/fencing"
)

// TestBindSeveralLocks: money goes from one account to another.
func TestBindSeveralLocks(t *testing.T) {
	t.Parallel()
	g := newFixture(t)
	one, two := g.grant("account:1", time.Minute), g.grant("account:2", time.Minute)
	table := g.table("accounts", "(id int, balance int)")
	g.sql("INSERT INTO " + table + " VALUES (1, 10), (2, 10), (3, 10)")
	g.protect(table, fencing.NamedBy("account:{id}"))
	move := "UPDATE " + table + " SET balance = balance + CASE id WHEN 1 THEN -5 ELSE 5 END WHERE id IN (1, 2)"

	ok(t, g.commit(g.bound(one, two), move))
	g.holds(table, "(1,5,%d) (2,15,%d) (3,10,)", one.Token, two.Token)
	err := g.commit(g.bound(one), move)
	if !errors.Is(err, fencing.ErrOtherLock) || !strings.Contains(err.Error(), `another lock: "account:2"`) {
		t.Errorf("without the second account's grant: %v", err)
	}
	for _, write := range []string{
		"UPDATE %s SET id = 4 WHERE id = 1", // to a lock that isn't bound
		"UPDATE %s SET id = 1 WHERE id = 2", // from one
		"INSERT INTO %s VALUES (4, 0)",
		"DELETE FROM %s WHERE id = 3",
	} {
		want(t, write, g.as(one, sprintf(write, table)), fencing.ErrOtherLock)
	}
	g.holds(table, "(1,5,%d) (2,15,%d) (3,10,)", one.Token, two.Token)
}

// TestLastBoundGrantWrites a table without NamedBy.
func TestLastBoundGrantWrites(t *testing.T) {
	t.Parallel()
	g, table := newProtectedTable(t)
	one, two := g.grant("1", time.Minute), g.grant("2", time.Minute)
	ok(t, g.commit(g.bound(two, one), "INSERT INTO "+table+" VALUES (1, 0)"))
	g.holds(table, "(1,0,%d)", one.Token)
}

// TestBindAndSavepoints: a rollback to a savepoint undoes what was bound since, and nothing else.
func TestBindAndSavepoints(t *testing.T) {
	t.Parallel()
	g := newFixture(t)
	one, two := g.grant("account:1", time.Minute), g.grant("account:2", time.Minute)
	table := g.table("accounts", "(id int PRIMARY KEY)")
	g.protect(table, fencing.NamedBy("account:{id}"))
	tx := g.begin()
	step := func(what string, wanted error, do func(inner pgx.Tx) error) {
		t.Helper()
		want(t, what, fencing.Explain(pgx.BeginFunc(t.Context(), tx, do)), wanted)
	}
	insert := func(id int) func(pgx.Tx) error {
		return func(inner pgx.Tx) error {
			_, err := inner.Exec(t.Context(), "INSERT INTO "+table+" VALUES ($1)", id)
			return err
		}
	}
	bind := func(f fencing.Fence) func(pgx.Tx) error {
		return func(inner pgx.Tx) error { return fencing.Bind(t.Context(), inner, f) }
	}
	g.savepoint(tx, func(inner pgx.Tx) { ok(t, bind(one)(inner)) })
	step("after the rollback of all that was bound", fencing.ErrUnfenced, insert(1))
	ok(t, bind(one)(tx))
	g.savepoint(tx, func(inner pgx.Tx) { ok(t, bind(two)(inner)) })
	step("the lock that was bound since", fencing.ErrOtherLock, insert(2))
	step("the lock that was bound before", nil, insert(1))
	step("a released savepoint keeps what it has bound", nil, bind(two))
	step("after a released savepoint", nil, insert(2))
}

// TestARevokedGrantWritesNoMore: a rollback to a savepoint gives up the lock of the grant's row, for which a
// revocation waits. The grant is bound all the same, by settings that were kept.
func TestARevokedGrantWritesNoMore(t *testing.T) {
	t.Parallel()
	g := newFixture(t)
	tables := map[string]string{"n": g.table("any", columns), "t:1": g.table("named", columns)}
	g.protect(tables["n"])
	g.protect(tables["t:1"], fencing.NamedBy("t:{id}"))
	kept := settings(g)
	for name, table := range tables {
		for _, revoked := range []bool{false, true} {
			f := g.grant(name, time.Minute)
			tx := g.begin()
			var grants, token string
			g.savepoint(tx, func(inner pgx.Tx) {
				ok(t, fencing.Bind(t.Context(), inner, f))
				ok(t, inner.QueryRow(t.Context(), "SELECT current_setting($1), current_setting($2)", kept["grants"], kept["token"]).Scan(&grants, &token))
			})
			_, err := tx.Exec(t.Context(), "SELECT set_config($1, $2, true), set_config($3, $4, true)", kept["grants"], grants, kept["token"], token)
			ok(t, err)
			wanted := error(nil)
			if revoked {
				g.sql("SELECT pglock.release_permits($1, $2, false, 'revoked', 'a test')", name, f.Token)
				g.sql("SELECT pglock.await_guards($1, $2, false)", name, f.Token)
				wanted = fencing.ErrStale
			}
			err = g.commit(tx, "INSERT INTO "+table+" (id, v) VALUES (1, 1) ON CONFLICT (id) DO UPDATE SET v = 2")
			want(t, sprintf("%s, revoked: %v", name, revoked), err, wanted)
		}
	}
}

// TestBindEndsWithItsTransaction: the next one on the same connection has bound nothing.
func TestBindEndsWithItsTransaction(t *testing.T) {
	t.Parallel()
	g, table := newProtectedTable(t)
	f := g.grant("n", time.Minute)
	conn := g.conn()
	for i, end := range []string{"COMMIT", "ROLLBACK"} {
		for _, s := range []string{"BEGIN", g.bindSQL(f), sprintf("INSERT INTO %s VALUES (%d)", table, i), end} {
			_, err := conn.Exec(t.Context(), s)
			ok(t, err)
		}
		_, err := conn.Exec(t.Context(), sprintf("INSERT INTO %s VALUES (10)", table))
		want(t, "after "+end, fencing.Explain(err), fencing.ErrUnfenced)
	}
	var idle string
	if err := conn.QueryRow(t.Context(), "SHOW idle_in_transaction_session_timeout").Scan(&idle); err != nil || idle != "0" {
		t.Errorf("idle_in_transaction_session_timeout stays %s, %v", idle, err)
	}
}

// TestBindAtStricterIsolation: a grant that was bound on a fresh snapshot stays bound when the
// lease is renewed, although the snapshot does not see the renewal. On an old snapshot Bind can't
// decide.
func TestBindAtStricterIsolation(t *testing.T) {
	t.Parallel()
	g, table := newProtectedTable(t)
	for i, level := range []pgx.TxIsoLevel{pgx.RepeatableRead, pgx.Serializable} {
		f := g.grant(string(level), time.Minute)
		tx := g.beginOn(g.writer, pgx.TxOptions{IsoLevel: level})
		for _, f := range []fencing.Fence{g.grant("beside "+string(level), time.Minute), f} {
			ok(t, fencing.Bind(t.Context(), tx, f))
			g.renew(f.Name)
		}
		want(t, string(level), g.commit(tx, sprintf("INSERT INTO %s VALUES (%d)", table, 2*i), sprintf("INSERT INTO %s VALUES (%d)", table, 2*i+1)), nil)
		tx = g.beginOn(g.writer, pgx.TxOptions{IsoLevel: level})
		g.exec(tx, "SELECT 1")
		for _, f := range []fencing.Fence{f, g.grant(string(level), time.Minute)} {
			g.savepoint(tx, func(inner pgx.Tx) {
				err := fencing.Bind(t.Context(), inner, f)
				if !errors.Is(err, fencing.ErrSnapshot) || errors.Is(err, fencing.ErrStale) {
					t.Errorf("%s: on a snapshot from before the grant: %v", level, err)
				}
			})
		}
	}
}

// TestI11_BoundTransactionMayOutliveItsLease: it commits as long as no other holder was granted the
// lock, and no acquire waits for it.
func TestI11_BoundTransactionMayOutliveItsLease(t *testing.T) {
	t.Parallel()
	g, table := newProtectedTable(t)
	f := g.grant("n", time.Minute)
	tx := g.bound(g.grant("another", time.Minute), f)
	g.end("n")
	g.end("another")
	g.exec(tx, "INSERT INTO "+table+" VALUES (1)")
	if g.free("n") {
		t.Error("another holder was granted the lock meanwhile")
	}
	ok(t, tx.Commit(t.Context()))
	want(t, "the next transaction", fencing.Bind(t.Context(), g.begin(), f), fencing.ErrStale)
}
