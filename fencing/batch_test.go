package fencing_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/fencing"
	"github.com/pglock/pglock-go/internal/locktest"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/internal/pgtx"
)

func batch(statements ...string) *pgx.Batch {
	b := &pgx.Batch{}
	for _, s := range statements {
		b.Queue(s)
	}
	return b
}

var modes = map[string]pgx.QueryExecMode{
	"cache statement": pgx.QueryExecModeCacheStatement, "cache describe": pgx.QueryExecModeCacheDescribe,
	"describe": pgx.QueryExecModeDescribeExec, "exec": pgx.QueryExecModeExec, "simple": pgx.QueryExecModeSimpleProtocol,
}

// asWriter configures a pool of one connection, as the writer and with that mode.
func (g fixture) asWriter(mode pgx.QueryExecMode) func(*pgxpool.Config) {
	writer := g.writer.Config().ConnConfig
	return func(own *pgxpool.Config) {
		own.ConnConfig.User, own.ConnConfig.Password = writer.User, writer.Password
		own.ConnConfig.DefaultQueryExecMode = mode
		own.MaxConns = 1
	}
}

// TestBatchIsAllOrNothing in each of pgx's modes, and leaves the connection usable.
func TestBatchIsAllOrNothing(t *testing.T) {
	t.Parallel()
	each(t, modes, func(t *testing.T, _ string, mode pgx.QueryExecMode) { //nolint:thelper // it is the test itself
		g, table := newProtectedTable(t)
		plain := g.table("plain", columns)
		old, current := g.grant("n", time.Minute), g.grant("n", time.Minute)
		pool := pgtest.PoolOn(t, pgtest.URL(t), g.asWriter(mode))
		backend := func() (pid int) {
			t.Helper()
			ok(t, pool.QueryRow(t.Context(), "SELECT pg_backend_pid() WHERE current_setting('idle_in_transaction_session_timeout') = '0'").Scan(&pid))
			return pid
		}
		first := backend()
		var read int
		b := batch("INSERT INTO "+table+" VALUES (1, 0)", "INSERT INTO "+plain+" VALUES (1, 0)")
		b.Queue("SELECT v + $1::int FROM "+table+" WHERE id = $2", 7, 1).QueryRow(func(row pgx.Row) error { return row.Scan(&read) })
		want(t, "the current grant", fencing.Batch(t.Context(), pool, current, b), nil)
		if read != 7 {
			t.Errorf("read %d", read)
		}
		g.holds(table, "(1,0,%d)", current.Token)

		for what, tc := range map[string]struct {
			fence fencing.Fence
			batch *pgx.Batch
			want  error
			code  string
		}{
			"stale":  {old, batch("INSERT INTO " + plain + " VALUES (2)"), fencing.ErrStale, ""},
			"forged": {fencing.Fence{Schema: g.schema, Name: "n", Token: current.Token + 1}, batch("INSERT INTO " + plain + " VALUES (2)"), fencing.ErrStale, ""},
			"unknown function, which is not one of ours": {current, batch("INSERT INTO "+plain+" VALUES (2)", "SELECT never()"), nil, "42883"},
			"no schema": {fencing.Fence{Schema: "no such schema", Name: "n", Token: 1}, batch("INSERT INTO " + plain + " VALUES (2)"), fencing.ErrSchemaMissing, ""},
		} {
			err := fencing.Batch(t.Context(), pool, tc.fence, tc.batch)
			if !errors.Is(err, tc.want) && tc.want != nil || tc.want == nil && (pgtx.SQLState(err) != tc.code || errors.Is(err, fencing.ErrSchemaMissing)) {
				t.Errorf("%s: %v", what, err)
			}
			g.holds(plain, "(1,0)")
		}
		want(t, "no batch", fencing.Batch(t.Context(), pool, current, nil), fencing.ErrInvalidOption)
		want(t, "nothing in it", fencing.Batch(t.Context(), pool, current, &pgx.Batch{}), nil)
		g.holds(plain, "(1,0)")
		if last := backend(); last != first {
			t.Errorf("the connection was given up: %d, then %d", first, last)
		}
	})
}

// TestBatchInATransaction of the caller's commits with it.
func TestBatchInATransaction(t *testing.T) {
	t.Parallel()
	g, table := newProtectedTable(t)
	f := g.grant("n", time.Minute)
	conn := g.conn()
	for name, db := range map[string]fencing.Sender{"a Tx": g.begin(), "a connection": conn.Conn()} {
		exec, rollback := conn.Exec, "ROLLBACK"
		if tx, ok := db.(pgx.Tx); ok {
			exec = tx.Exec
		} else if _, err := exec(t.Context(), "BEGIN"); err != nil {
			t.Fatal(err)
		}
		want(t, name, fencing.Batch(t.Context(), db, f, batch("INSERT INTO "+table+" VALUES (1, 0)")), nil)
		want(t, name+" with what would need BEGIN", fencing.Batch(t.Context(), db, f, batch("SET LOCAL lock_timeout = '1s'")), nil)
		g.holds(table, "") // not committed
		if _, err := exec(t.Context(), rollback); err != nil {
			t.Fatal(err)
		}
		g.holds(table, "")
	}
}

// TestBatchTakesOneRoundTrip once its statements are prepared. The control sends the same statements
// in an ordinary transaction.
func TestBatchTakesOneRoundTrip(t *testing.T) {
	t.Parallel()
	g := newFixture(t)
	table := g.table("t", columns)
	f := g.grant("n", time.Minute)
	for name, mode := range modes {
		if mode == pgx.QueryExecModeDescribeExec {
			continue // asks the server about each statement each time
		}
		conn, err := pgtest.PoolOn(t, pgtest.URL(t), g.asWriter(mode), pgtest.CountTurns).Acquire(t.Context())
		ok(t, err)
		defer conn.Release()
		turns := func(call func() error) int64 {
			t.Helper()
			ok(t, call()) // prepares its statements
			before := pgtest.Turns(t, conn.Conn())
			ok(t, call())
			return pgtest.Turns(t, conn.Conn()) - before
		}
		update := "UPDATE " + table + " SET v = v + 1"
		if n := turns(func() error { return fencing.Batch(t.Context(), conn, f, batch(update)) }); n != 1 {
			t.Errorf("%s: %d round trips", name, n)
		}
		if n := turns(func() error {
			return pgx.BeginFunc(t.Context(), conn, func(tx pgx.Tx) error {
				_, err := tx.Exec(t.Context(), update)
				return errors.Join(fencing.Check(t.Context(), tx, f), err)
			})
		}); n < 4 {
			t.Errorf("%s: control: four statements took %d round trips", name, n)
		}
	}
}

// TestBatchEndsWithItsContext and leaves nothing behind.
func TestBatchEndsWithItsContext(t *testing.T) {
	t.Parallel()
	g := newFixture(t)
	table := g.table("t", columns)
	f := g.grant("n", time.Minute)
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	err := fencing.Batch(ctx, g.writer, f, batch("INSERT INTO "+table+" VALUES (1)", "SELECT pg_sleep(60)"))
	want(t, "the call", err, context.DeadlineExceeded)
	pgtest.Eventually(t, locktest.Patience, "the grant is free to be taken over", func() bool { return g.free("n") })
	g.holds(table, "")
	pgtest.Eventually(t, 20*time.Second, "the connection is back in the pool", func() bool { return g.writer.Stat().AcquiredConns() == 0 })
}
