package fencing_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/fencing"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/internal/schema"
	"github.com/pglock/pglock-go/pglock/sqltx"
)

func TestCheckPassesTheCurrentGrantOnly(t *testing.T) {
	t.Parallel()
	g := newFixture(t)
	old := g.grant("n", time.Minute)
	current := g.grant("n", time.Minute)
	ended := g.grant("ended", -time.Second)
	for name, tc := range map[string]struct {
		fence   fencing.Fence
		current fencing.Token // of the error; -1 for no error
	}{
		"current":      {current, -1},
		"older":        {old, current.Token},
		"forged":       {fencing.Fence{Schema: g.schema, Name: "n", Token: current.Token + 1}, current.Token},
		"ended":        {ended, ended.Token},
		"unknown name": {fencing.Fence{Schema: g.schema, Name: "never", Token: 1}, 0},
	} {
		err := fencing.Check(t.Context(), g.begin(), tc.fence)
		if tc.current < 0 {
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		var stale *fencing.StaleError
		if !errors.Is(err, fencing.ErrStale) || !errors.As(err, &stale) || stale.Current != tc.current || stale.Token != tc.fence.Token {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := fencing.Check(t.Context(), g.begin(), fencing.Fence{Schema: "no such schema", Name: "n", Token: 1}); !errors.Is(err, fencing.ErrSchemaMissing) {
		t.Errorf("a schema that isn't there: %v", err)
	}
}

// TestP04_CheckDelaysATakeover: no takeover comes between the check and the commit, and the
// holder's renewals do not wait.
func TestP04_CheckDelaysATakeover(t *testing.T) {
	t.Parallel()
	g := newFixture(t)
	fence := g.grant("n", time.Minute)
	tx := g.begin()
	if err := fencing.Check(t.Context(), tx, fence); err != nil {
		t.Fatal(err)
	}
	if _, err := g.pool.Exec(t.Context(), schema.Render("UPDATE pglock.distributed_locks SET expires_at = expires_at + interval '1 s', version = version + 1", g.schema)); err != nil {
		t.Errorf("a renewal during the guarded transaction: %v", err)
	}
	takenOver := make(chan struct{})
	go func() {
		defer close(takenOver)
		g.grant("n", time.Minute)
	}()
	pgtest.Eventually(t, 30*time.Second, "the takeover waits", func() bool {
		var waits bool
		err := g.pool.QueryRow(t.Context(), `SELECT EXISTS (SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND position($1 IN query) > 0)`,
			schema.Quote(g.schema)+".distributed_locks").Scan(&waits)
		if err != nil {
			t.Fatal(err)
		}
		return waits
	})
	select {
	case <-takenOver:
		t.Error("the takeover went through during the guarded transaction")
	default:
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Errorf("commit: %v", err)
	}
	<-takenOver
	if err := fencing.Check(t.Context(), g.begin(), fence); !errors.Is(err, fencing.ErrStale) {
		t.Errorf("after the takeover: %v", err)
	}
}

// TestP04_CheckDelaysATakeoverControl takes over without locking the row FOR UPDATE, and succeeds
// during the guarded transaction.
func TestP04_CheckDelaysATakeoverControl(t *testing.T) {
	t.Parallel()
	g := newFixture(t)
	fence := g.grant("n", time.Minute)
	tx := g.begin()
	if err := fencing.Check(t.Context(), tx, fence); err != nil {
		t.Fatal(err)
	}
	g.sql("UPDATE pglock.distributed_locks SET token = pglock.next_fencing_token() WHERE name = 'n'") // hangs if it waits
	if err := tx.Commit(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestCheckBoundsAPausedHolder: the server ends a guarded transaction that is idle for longer than
// the lease had left. A shorter limit of the caller's stays in force.
func TestCheckBoundsAPausedHolder(t *testing.T) {
	t.Parallel()
	g := newFixture(t)
	limit := func(own string, hold func(tx pgx.Tx) error) string {
		tx := g.begin()
		defer func() { _ = tx.Rollback(context.Background()) }()
		if _, err := tx.Exec(t.Context(), "SELECT set_config('idle_in_transaction_session_timeout', $1, true)", own); err != nil {
			t.Fatal(err)
		}
		if err := hold(tx); err != nil {
			t.Fatal(err)
		}
		var ms string
		if err := tx.QueryRow(t.Context(), "SELECT setting FROM pg_settings WHERE name = 'idle_in_transaction_session_timeout'").Scan(&ms); err != nil {
			t.Fatal(err)
		}
		return ms
	}
	long, longest := g.grant("long", time.Hour), g.grant("longest", 1000*time.Hour)
	for own, want := range map[string]string{"5s": "5000", "1min": "60000", "250": "250", "1h": "3600000", "1d": "3600000", "0": "3600000"} {
		for how, hold := range map[string]func(tx pgx.Tx) error{
			"Check": func(tx pgx.Tx) error { return fencing.Check(t.Context(), tx, long) },
			"Bind":  func(tx pgx.Tx) error { return fencing.Bind(t.Context(), tx, long) },
		} {
			// Some of the hour has passed by then.
			if got := limit(own, hold); got != want && (want != "3600000" || got < "3400000" || len(got) != 7) {
				t.Errorf("%s: with a limit of %s of the caller's own it is %s ms, want %s", how, own, got, want)
			}
		}
	}
	if got := limit("0", func(tx pgx.Tx) error { return fencing.Bind(t.Context(), tx, longest) }); got != "2147483647" {
		t.Errorf("of a lease that lasts longer than a limit can: %s", got)
	}

	tx := g.begin()
	short := g.grant("short", 2*time.Second)
	if err := fencing.Check(t.Context(), tx, short); err != nil {
		t.Fatal(err)
	}
	// The holder pauses here; a takeover waits no longer than about the lease.
	g.grant("short", time.Minute)
	if err := tx.Commit(t.Context()); err == nil {
		t.Error("the paused holder's transaction was committed")
	}
}

// TestCheckOnAnOldSnapshot: in a REPEATABLE READ transaction whose snapshot is older than the last
// renewal, or than a takeover, Check returns ErrSnapshot. A transaction that checks first passes.
func TestCheckOnAnOldSnapshot(t *testing.T) {
	t.Parallel()
	g := newFixture(t)
	begin := func() pgx.Tx { return g.beginOn(g.writer, pgx.TxOptions{IsoLevel: pgx.RepeatableRead}) }
	const short = 300 * time.Millisecond
	for name, change := range map[string]string{
		"renewed": "expires_at = clock_timestamp() + interval '1 hour', version = version + 1",
		"taken":   "token = pglock.next_fencing_token()",
	} {
		fence := g.grant(name, short)
		tx := begin()
		if _, err := tx.Exec(t.Context(), "SELECT 1"); err != nil { // takes the snapshot
			t.Fatal(err)
		}
		if _, err := g.pool.Exec(t.Context(), schema.Render("UPDATE pglock.distributed_locks SET "+change+" WHERE name = $1", g.schema), name); err != nil {
			t.Fatal(err)
		}
		<-time.After(short) // by the snapshot, the lease has ended
		if err := fencing.Check(t.Context(), tx, fence); !errors.Is(err, fencing.ErrSnapshot) || errors.Is(err, fencing.ErrStale) {
			t.Errorf("%s since the snapshot: %v", name, err)
		}
	}
	if err := fencing.Check(t.Context(), begin(), g.grant("first", time.Minute)); err != nil {
		t.Errorf("checked first: %v", err)
	}
}

// TestP04_OnlyATransactionCanBeChecked: a program that passes a pool or a connection, where the
// check would no longer hold when it returns, does not compile.
func TestP04_OnlyATransactionCanBeChecked(t *testing.T) {
	t.Parallel()
	for db, fits := range map[any]bool{
		(*pgxpool.Pool)(nil): false, (*pgxpool.Conn)(nil): false, (*pgx.Conn)(nil): false,
		(*pgxpool.Tx)(nil): true, (*sqltx.Tx)(nil): true, pgx.Tx(stub{}): true,
	} {
		if _, is := db.(fencing.Tx); is != fits {
			t.Errorf("a %T fits as a transaction: %v", db, is)
		}
		if _, is := db.(fencing.DB); !is {
			t.Errorf("control: a %T does not fit as a database", db)
		}
	}
}

// stub is a pgx.Tx without methods of its own.
type stub struct{ pgx.Tx }

// TestEndedTransactionIsRefused with ErrNoTransaction.
func TestEndedTransactionIsRefused(t *testing.T) {
	t.Parallel()
	g := newFixture(t)
	f := g.grant("n", time.Minute)
	ended := g.begin()
	if err := ended.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	for name, tx := range map[string]fencing.Tx{"nil": nil, "one that was committed": ended} {
		want(t, "Check in "+name, fencing.Check(t.Context(), tx, f), fencing.ErrNoTransaction)
		want(t, "Bind in "+name, fencing.Bind(t.Context(), tx, f), fencing.ErrNoTransaction)
		want(t, "Advance in "+name, fencing.Advance(t.Context(), tx, "r", 1, fencing.WithSchema(g.schema)), fencing.ErrNoTransaction)
	}
}

// TestInvalidFenceIsNotSent to the server.
func TestInvalidFenceIsNotSent(t *testing.T) {
	t.Parallel()
	g := newFixture(t)
	f := g.grant("n", time.Minute)
	for name, change := range map[string]func(*fencing.Fence){
		"token 0":          func(f *fencing.Fence) { f.Token = 0 },
		"negative token":   func(f *fencing.Fence) { f.Token = -f.Token },
		"no name":          func(f *fencing.Fence) { f.Name = "" },
		"long name":        func(f *fencing.Fence) { f.Name = strings.Repeat("n", 513) },
		"NUL in the name":  func(f *fencing.Fence) { f.Name = "a\x00b" },
		"name not UTF-8":   func(f *fencing.Fence) { f.Name = "\xff" },
		"schema not valid": func(f *fencing.Fence) { f.Schema = "pg_catalog" },
	} {
		bad := f
		change(&bad)
		tx := g.begin()
		for call, err := range map[string]error{
			"Check": fencing.Check(t.Context(), tx, bad),
			"Bind":  fencing.Bind(t.Context(), tx, bad),
			"Batch": fencing.Batch(t.Context(), g.writer, bad, &pgx.Batch{}),
		} {
			if !errors.Is(err, fencing.ErrInvalidFence) || errors.Is(err, fencing.ErrStale) {
				t.Errorf("%s: %s: %v", name, call, err)
			}
		}
		if err := fencing.Check(t.Context(), tx, f); err != nil {
			t.Errorf("%s: the transaction was harmed: %v", name, err)
		}
	}
	// The functions check their arguments too, for callers in SQL.
	for _, call := range []string{"pglock.bind('n', 0)", "pglock.bind('n', NULL)", "pglock.bind(NULL, 1)", "pglock.guard('', 1)", "pglock.check_fence(NULL, 1)", "pglock.advance('r', -1)"} {
		want(t, call, g.unbound("SELECT "+call), fencing.ErrInvalidFence)
	}
}

// TestFenceOfAnotherSchemaIsStale, although both schemas have a lock of that name and that token.
func TestFenceOfAnotherSchemaIsStale(t *testing.T) {
	t.Parallel()
	here, there := newFixture(t), newFixture(t)
	mine, theirs := here.grant("n", time.Minute), there.grant("n", time.Minute)
	if mine.Token != theirs.Token {
		t.Fatalf("tokens %d and %d", mine.Token, theirs.Token)
	}
	table := here.table("t", "(id int PRIMARY KEY)")
	here.protect(table)
	tx := here.beginOn(here.pool, pgx.TxOptions{})
	if err := fencing.Bind(t.Context(), tx, theirs); err != nil {
		t.Fatal(err)
	}
	_, err := tx.Exec(t.Context(), "INSERT INTO "+table+" VALUES (1)")
	want(t, "a write with the other schema's grant", fencing.Explain(err), fencing.ErrUnfenced)
}
