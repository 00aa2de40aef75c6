package fencing_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/fencing"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/internal/schema"
)

// table is a schema of a test's own, with rows that the test writes itself.
type table struct {
	t      *testing.T
	pool   *pgxpool.Pool
	schema string
}

func newTable(t *testing.T) table {
	t.Helper()
	pool := pgtest.Pool(t)
	return table{t, pool, pgtest.Schema(t, pool)}
}

// grant gives the name to somebody for that long, and returns the fence.
func (g table) grant(name string, d time.Duration) fencing.Fence {
	g.t.Helper()
	f := fencing.Fence{Schema: g.schema, Name: name}
	err := g.pool.QueryRow(g.t.Context(), schema.Render(
		`INSERT INTO pglock.distributed_locks AS l (name, token, version, holder, acquired_at, expires_at)
		 VALUES ($1, pglock.next_fencing_token(), 1, 'h', clock_timestamp(), clock_timestamp() + $2 * interval '1 microsecond')
		 ON CONFLICT (name) DO UPDATE SET token = excluded.token, version = l.version + 1, holder = 'h', expires_at = excluded.expires_at
		 RETURNING token`, g.schema), name, d.Microseconds()).Scan(&f.Token)
	if err != nil {
		g.t.Fatal(err)
	}
	return f
}

func (g table) begin() pgx.Tx {
	g.t.Helper()
	tx, err := g.pool.Begin(g.t.Context())
	if err != nil {
		g.t.Fatal(err)
	}
	g.t.Cleanup(func() { _ = tx.Rollback(context.Background()) })
	return tx
}

func TestCheckPassesTheCurrentGrantOnly(t *testing.T) {
	t.Parallel()
	g := newTable(t)
	old := g.grant("n", time.Minute)
	current := g.grant("n", time.Minute)
	ended := g.grant("ended", -time.Second)
	for name, tc := range map[string]struct {
		fence   fencing.Fence
		current fencing.Token // that the error tells; -1 for no error
	}{
		"current":      {current, -1},
		"older":        {old, current.Token},
		"forged":       {fencing.Fence{Schema: g.schema, Name: "n", Token: current.Token + 1}, current.Token},
		"zero":         {fencing.Fence{Schema: g.schema, Name: "n"}, current.Token},
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

// TestP04_CheckHoldsOffATakeover: nobody can come between the check and the commit,
// and the holder's renewals pass.
func TestP04_CheckHoldsOffATakeover(t *testing.T) {
	t.Parallel()
	g := newTable(t)
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
	pgtest.Eventually(t, 5*time.Second, "the takeover waits", func() bool {
		var waits bool
		err := g.pool.QueryRow(t.Context(), `SELECT EXISTS (SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%' || $1 || '%distributed_locks%')`,
			schema.Quote(g.schema)).Scan(&waits)
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

// TestP04_CheckHoldsOffATakeoverControl takes the unique index on token away: then the
// takeover goes through during the guarded transaction.
func TestP04_CheckHoldsOffATakeoverControl(t *testing.T) {
	t.Parallel()
	g := newTable(t)
	if _, err := g.pool.Exec(t.Context(), schema.Render("ALTER TABLE pglock.distributed_locks DROP CONSTRAINT distributed_locks_token_key", g.schema)); err != nil {
		t.Fatal(err)
	}
	fence := g.grant("n", time.Minute)
	tx := g.begin()
	if err := fencing.Check(t.Context(), tx, fence); err != nil {
		t.Fatal(err)
	}
	g.grant("n", time.Minute) // hangs if it waits
	if err := tx.Commit(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestCheckBoundsAPausedHolder: the server ends a guarded transaction that idles for
// longer than the lease had left, and keeps a shorter limit of the caller's own.
func TestCheckBoundsAPausedHolder(t *testing.T) {
	t.Parallel()
	g := newTable(t)
	limit := func(own string, fence fencing.Fence) string {
		tx := g.begin()
		if _, err := tx.Exec(t.Context(), "SELECT set_config('idle_in_transaction_session_timeout', $1, true)", own); err != nil {
			t.Fatal(err)
		}
		if err := fencing.Check(t.Context(), tx, fence); err != nil {
			t.Fatal(err)
		}
		var ms string
		if err := tx.QueryRow(t.Context(), "SELECT setting FROM pg_settings WHERE name = 'idle_in_transaction_session_timeout'").Scan(&ms); err != nil {
			t.Fatal(err)
		}
		return ms
	}
	long := g.grant("long", time.Hour)
	for own, want := range map[string]string{"5s": "5000", "1min": "60000", "250": "250", "1h": "3600000", "1d": "3600000", "0": "3600000"} {
		// Of an hour, milliseconds have passed by then.
		if got := limit(own, long); got != want && (want != "3600000" || got < "3590000" || len(got) != 7) {
			t.Errorf("with a limit of %s of the caller's own it is %s ms, want %s", own, got, want)
		}
	}

	tx := g.begin()
	short := g.grant("short", 300*time.Millisecond)
	if err := fencing.Check(t.Context(), tx, short); err != nil {
		t.Fatal(err)
	}
	// The holder pauses here; a takeover waits for no more than about the lease.
	g.grant("short", time.Minute)
	if err := tx.Commit(t.Context()); err == nil {
		t.Error("the paused holder's transaction was committed")
	}
}

// TestCheckOnAnOldSnapshot: a REPEATABLE READ transaction whose snapshot is older than
// the last renewal, or than a takeover, is told that it can't tell; one that checks
// first passes.
func TestCheckOnAnOldSnapshot(t *testing.T) {
	t.Parallel()
	g := newTable(t)
	begin := func() pgx.Tx {
		tx, err := g.pool.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = tx.Rollback(context.Background()) })
		return tx
	}
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
