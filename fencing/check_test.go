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
	"github.com/pglock/pglock-go/pglock/sqltx"
)

// guards are the calls that guard a transaction. They differ only in what a protected table makes
// of them.
var guards = map[string]func(context.Context, fencing.Tx, fencing.Fence) error{"Check": fencing.Check, "Bind": fencing.Bind}

func TestGuardsPassTheCurrentGrantOnly(t *testing.T) {
	t.Parallel()
	g, table := newProtectedTable(t)
	old, current, ended := g.grant("n", time.Minute), g.grant("n", time.Minute), g.grant("ended", -time.Second)
	for call, guard := range guards {
		want(t, call+" of the current one", guard(t.Context(), g.begin(), current), nil)
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
			wantStale(t, call+", "+name, guard(t.Context(), tx, tc.fence), fencing.StaleError{Resource: tc.fence.Name, Token: tc.fence.Token, Current: tc.current})
			// A caller that ignores the error can't write either.
			if g.send(tx, "INSERT INTO "+table+" VALUES (1)") == nil {
				t.Errorf("%s, %s: a write after the refusal passed", call, name)
			}
		}
		want(t, call+" in a schema that isn't there", guard(t.Context(), g.begin(), fencing.Fence{Schema: "no such schema", Name: "n", Token: 1}), fencing.ErrSchemaMissing)
	}
	want(t, "a write", g.as(current, "INSERT INTO "+table+" VALUES (1)"), nil)
}

// TestP04_GuardsDelayATakeover: the grant can't be taken over before the commit, and the holder's
// renewals do not wait. The control changes the token without locking the row FOR UPDATE, as no
// statement of this module does, and succeeds during the guarded transaction.
func TestP04_GuardsDelayATakeover(t *testing.T) {
	t.Parallel()
	for call, guard := range guards {
		g := newFixture(t)
		tx := g.begin()
		ok(t, guard(t.Context(), tx, g.grant("n", time.Minute)))
		g.renew("n") // hangs if it waits
		if g.free("n") {
			t.Errorf("%s: a takeover could come between the guard and the commit", call)
		}
		g.sql("UPDATE pglock.distributed_locks SET token = pglock.next_fencing_token() WHERE name = 'n'") // the control hangs if it waits
		ok(t, tx.Commit(t.Context()))
		if !g.free("n") {
			t.Errorf("%s: the grant is still held after the commit", call)
		}
	}
}

// TestI4_AHolderPausedInsideItsTransaction: the server ends a guarded transaction that is idle for longer
// than the lease had left, and the next holder is granted the lock. A shorter limit of the caller's stays
// in force. In the control, without the limit, the grant stays held.
func TestI4_AHolderPausedInsideItsTransaction(t *testing.T) {
	t.Parallel()
	g := newFixture(t)
	limit := func(call, own string, f fencing.Fence) (ms string) {
		tx := g.begin()
		defer func() { _ = tx.Rollback(context.Background()) }()
		g.exec(tx, "SELECT set_config('idle_in_transaction_session_timeout', $1, true)", own)
		ok(t, guards[call](t.Context(), tx, f))
		ok(t, tx.QueryRow(t.Context(), "SELECT setting FROM pg_settings WHERE name = 'idle_in_transaction_session_timeout'").Scan(&ms))
		return ms
	}
	long, longest := g.grant("long", time.Hour), g.grant("longest", 1000*time.Hour)
	for call := range guards {
		for own, want := range map[string]string{"5s": "5000", "1min": "60000", "250": "250", "1h": "3600000", "1d": "3600000", "0": "3600000"} {
			// Some of the hour has passed by then.
			if got := limit(call, own, long); got != want && (want != "3600000" || got < "3400000" || len(got) != 7) {
				t.Errorf("%s: with a limit of %s of the caller's own it is %s ms, want %s", call, own, got, want)
			}
		}
		if got := limit(call, "0", longest); got != "2147483647" {
			t.Errorf("%s of a lease that lasts longer than a limit can: %s", call, got)
		}
	}

	const lease = 2 * time.Second
	for call, guard := range guards {
		paused, control := g.begin(), g.begin()
		ok(t, guard(t.Context(), paused, g.grant("paused in "+call, lease)))
		ok(t, guard(t.Context(), control, g.grant("control in "+call, lease)))
		g.exec(control, "SET LOCAL idle_in_transaction_session_timeout = 0")
		g.grant("paused in "+call, time.Minute) // waits for the end of that transaction
		want(t, call+": the paused holder resumes", g.commit(paused, "SELECT 1"), fencing.ErrPaused)
		if g.free("control in " + call) {
			t.Errorf("control: without the limit of %s the grant is free", call)
		}
		want(t, "control: it resumes", g.commit(control, "SELECT 1"), nil)
	}
}

// TestCheckOnAnOldSnapshot: in a REPEATABLE READ transaction whose snapshot is older than the last
// renewal, or than a takeover, Check returns ErrSnapshot. A transaction that checks first passes.
func TestCheckOnAnOldSnapshot(t *testing.T) {
	t.Parallel()
	g := newFixture(t)
	begin := func() pgx.Tx { return g.beginOn(g.writer, pgx.TxOptions{IsoLevel: pgx.RepeatableRead}) }
	for name, change := range map[string]string{
		"renewed": "expires_at = clock_timestamp() + interval '1 hour', version = version + 1",
		"taken":   "token = pglock.next_fencing_token()",
	} {
		fence := g.grant(name, -time.Second) // by the snapshot, the lease has ended
		tx := begin()
		g.exec(tx, "SELECT 1") // takes the snapshot
		g.sql("UPDATE pglock.distributed_locks SET "+change+" WHERE name = $1", name)
		if err := fencing.Check(t.Context(), tx, fence); !errors.Is(err, fencing.ErrSnapshot) || errors.Is(err, fencing.ErrStale) {
			t.Errorf("%s since the snapshot: %v", name, err)
		}
	}
	want(t, "checked first", fencing.Check(t.Context(), begin(), g.grant("first", time.Minute)), nil)
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
	ok(t, ended.Commit(t.Context()))
	for name, tx := range map[string]fencing.Tx{"nil": nil, "one that was committed": ended} {
		for call, guard := range guards {
			want(t, call+" in "+name, guard(t.Context(), tx, f), fencing.ErrNoTransaction)
		}
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
		want(t, name+": the transaction was not harmed", fencing.Check(t.Context(), tx, f), nil)
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
	table := here.elsewhere("t")
	want(t, "a write with the other schema's grant", here.run(here.pool, there.bindSQL(theirs), "INSERT INTO "+table+" VALUES (1)"), fencing.ErrUnfenced)
}
