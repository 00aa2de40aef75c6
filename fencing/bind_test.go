package fencing_test

import (
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglock/pglock-go/fencing"
)

func TestBindPassesTheCurrentGrantOnly(t *testing.T) {
	t.Parallel()
	g := newFixture(t)
	old := g.grant("n", time.Minute)
	current := g.grant("n", time.Minute)
	ended := g.grant("ended", -time.Second)
	table := g.table("t", "(id int PRIMARY KEY)")
	g.protect(table)
	for name, tc := range map[string]struct {
		fence   fencing.Fence
		current fencing.Token
	}{
		"older":        {old, current.Token},
		"forged":       {fencing.Fence{Schema: g.schema, Name: "n", Token: current.Token + 1}, current.Token},
		"ended":        {ended, ended.Token},
		"unknown name": {fencing.Fence{Schema: g.schema, Name: "never", Token: 1}, 0},
	} {
		tx := g.begin()
		err := fencing.Bind(t.Context(), tx, tc.fence)
		var stale *fencing.StaleError
		if !errors.As(err, &stale) || stale.Resource != tc.fence.Name || stale.Current != tc.current || stale.Token != tc.fence.Token {
			t.Errorf("%s: %v", name, err)
		}
		// A caller that ignores the error can't write either.
		if _, err := tx.Exec(t.Context(), "INSERT INTO "+table+" VALUES (1)"); err == nil {
			t.Errorf("%s: a write after the refusal passed", name)
		}
	}
	if err := g.as(current, "INSERT INTO "+table+" VALUES (1)"); err != nil {
		t.Error(err)
	}
	want(t, "a schema that isn't there", fencing.Bind(t.Context(), g.begin(), fencing.Fence{Schema: "no such schema", Name: "n", Token: 1}), fencing.ErrSchemaMissing)
}

// TestBindDelaysATakeover as Check does. The control is that of Check.
func TestBindDelaysATakeover(t *testing.T) {
	t.Parallel()
	g := newFixture(t)
	f := g.grant("n", time.Minute)
	tx := g.bound(f)
	g.renew("n") // passes
	var free bool
	err := g.pool.QueryRow(t.Context(), g.named("SELECT EXISTS (SELECT FROM pglock.distributed_locks WHERE name = 'n' FOR UPDATE SKIP LOCKED)")).Scan(&free)
	if err != nil || free {
		t.Errorf("the grant could be taken over: %v, %v", free, err)
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestBindSeveralLocks: money goes from one account to another.
func TestBindSeveralLocks(t *testing.T) {
	t.Parallel()
	g := newFixture(t)
	one, two := g.grant("account:1", time.Minute), g.grant("account:2", time.Minute)
	table := g.table("accounts", "(id int, balance int)")
	g.sql("INSERT INTO " + table + " VALUES (1, 10), (2, 10), (3, 10)")
	g.protect(table, fencing.NamedBy("account:{id}"))
	move := "UPDATE " + table + " SET balance = balance + CASE id WHEN 1 THEN -5 ELSE 5 END WHERE id IN (1, 2)"

	if err := g.commit(g.bound(one, two), move); err != nil {
		t.Error(err)
	}
	g.holds(table, "(1,5,%d) (2,15,%d) (3,10,)", one.Token, two.Token)
	var other *fencing.OtherLockError
	err := g.commit(g.bound(one), move)
	if !errors.As(err, &other) || other.Name != "account:2" || !errors.Is(err, fencing.ErrOtherLock) {
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
	g := newFixture(t)
	one, two := g.grant("1", time.Minute), g.grant("2", time.Minute)
	table := g.table("t", "(id int PRIMARY KEY)")
	g.protect(table)
	tx := g.bound(two, one)
	if err := g.commit(tx, "INSERT INTO "+table+" VALUES (1)"); err != nil {
		t.Fatal(err)
	}
	g.holds(table, "(1,%d)", one.Token)
}

// TestBindAndSavepoints: a rollback to a savepoint undoes what was bound since, and nothing else.
func TestBindAndSavepoints(t *testing.T) {
	t.Parallel()
	g := newFixture(t)
	one, two := g.grant("account:1", time.Minute), g.grant("account:2", time.Minute)
	table := g.table("accounts", "(id int PRIMARY KEY)")
	g.protect(table, fencing.NamedBy("account:{id}"))
	insert := func(tx pgx.Tx, id int) error {
		inner, err := tx.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		_, err = inner.Exec(t.Context(), "INSERT INTO "+table+" VALUES ($1)", id)
		if err != nil {
			_ = inner.Rollback(t.Context())
			return fencing.Explain(err)
		}
		return inner.Commit(t.Context())
	}
	tx := g.begin()
	inner, err := tx.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := fencing.Bind(t.Context(), inner, one); err != nil {
		t.Fatal(err)
	}
	if err := inner.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	want(t, "after the rollback of all that was bound", insert(tx, 1), fencing.ErrUnfenced)

	if err := fencing.Bind(t.Context(), tx, one); err != nil {
		t.Fatal(err)
	}
	inner, err = tx.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := fencing.Bind(t.Context(), inner, two); err != nil {
		t.Fatal(err)
	}
	if err := inner.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	want(t, "the lock that was bound since", insert(tx, 2), fencing.ErrOtherLock)
	want(t, "the lock that was bound before", insert(tx, 1), nil)
	// A released savepoint keeps it.
	inner, err = tx.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := fencing.Bind(t.Context(), inner, two); err != nil {
		t.Fatal(err)
	}
	if err := inner.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	want(t, "after a committed savepoint", insert(tx, 2), nil)
}

// TestBindEndsWithItsTransaction: the next one on the same connection has bound nothing.
func TestBindEndsWithItsTransaction(t *testing.T) {
	t.Parallel()
	g := newFixture(t)
	f := g.grant("n", time.Minute)
	table := g.table("t", "(id int PRIMARY KEY)")
	g.protect(table)
	conn := g.conn()
	for i, end := range []string{"COMMIT", "ROLLBACK"} {
		for _, s := range []string{"BEGIN", sprintf("SELECT pglock.bind('n', %d)", f.Token), sprintf("INSERT INTO %s VALUES (%d)", table, i), end} {
			if _, err := conn.Exec(t.Context(), g.named(s)); err != nil {
				t.Fatal(err)
			}
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
// lease is renewed, although the snapshot does not see the renewal.
func TestBindAtStricterIsolation(t *testing.T) {
	t.Parallel()
	g := newFixture(t)
	table := g.table("t", "(id int PRIMARY KEY)")
	g.protect(table)
	for i, level := range []pgx.TxIsoLevel{pgx.RepeatableRead, pgx.Serializable} {
		f := g.grant(string(level), time.Minute)
		tx := g.beginOn(g.writer, pgx.TxOptions{IsoLevel: level})
		for _, f := range []fencing.Fence{g.grant("beside "+string(level), time.Minute), f} {
			if err := fencing.Bind(t.Context(), tx, f); err != nil {
				t.Fatal(err)
			}
			g.renew(f.Name)
		}
		if err := g.commit(tx, sprintf("INSERT INTO %s VALUES (%d)", table, 2*i), sprintf("INSERT INTO %s VALUES (%d)", table, 2*i+1)); err != nil {
			t.Errorf("%s: %v", level, err)
		}
		// On an old snapshot Bind can't decide.
		tx = g.beginOn(g.writer, pgx.TxOptions{IsoLevel: level})
		if _, err := tx.Exec(t.Context(), "SELECT 1"); err != nil {
			t.Fatal(err)
		}
		next := g.grant(string(level), time.Minute)
		for _, f := range []fencing.Fence{f, next} {
			inner, err := tx.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			err = fencing.Bind(t.Context(), inner, f)
			if !errors.Is(err, fencing.ErrSnapshot) || errors.Is(err, fencing.ErrStale) {
				t.Errorf("%s: on a snapshot from before the grant: %v", level, err)
			}
			if err := inner.Rollback(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// TestI11_BoundTransactionMayOutliveItsLease: it commits as long as no other holder was granted the
// lock, and no acquire waits for it.
func TestI11_BoundTransactionMayOutliveItsLease(t *testing.T) {
	t.Parallel()
	g := newFixture(t)
	f := g.grant("n", time.Minute)
	table := g.table("t", "(id int PRIMARY KEY)")
	g.protect(table)
	tx := g.bound(g.grant("another", time.Minute), f)
	g.end("n")
	g.end("another")
	if _, err := tx.Exec(t.Context(), "INSERT INTO "+table+" VALUES (1)"); err != nil {
		t.Errorf("a write after the lease's end: %v", err)
	}
	if free := value[bool](g, "SELECT EXISTS (SELECT FROM pglock.distributed_locks WHERE name = 'n' FOR UPDATE SKIP LOCKED)"); free {
		t.Error("another holder was granted the lock meanwhile")
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Error(err)
	}
	want(t, "the next transaction", fencing.Bind(t.Context(), g.begin(), f), fencing.ErrStale)
}
