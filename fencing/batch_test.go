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

// single returns a pool of one connection, as the writer and with that mode.
func (g fixture) single(mode pgx.QueryExecMode, opts ...func(*pgxpool.Config)) *pgxpool.Pool {
	g.t.Helper()
	writer := g.writer.Config().ConnConfig
	return pgtest.PoolOn(g.t, g.pool.Config().ConnString(), append(opts, func(own *pgxpool.Config) {
		own.ConnConfig.User, own.ConnConfig.Password = writer.User, writer.Password
		own.ConnConfig.DefaultQueryExecMode = mode
		own.MaxConns = 1
	})...)
}

// queued is a tracer that has the statements of the last batch.
type queued struct{ statements []string }

func (q *queued) TraceBatchStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceBatchStartData) context.Context {
	q.statements = nil
	for _, s := range data.Batch.QueuedQueries {
		q.statements = append(q.statements, s.SQL)
	}
	return ctx
}
func (q *queued) TraceBatchQuery(context.Context, *pgx.Conn, pgx.TraceBatchQueryData) {}
func (q *queued) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData)     {}
func (q *queued) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	return ctx
}
func (q *queued) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// TestABatchIsOneTransaction in each of pgx's modes, with BEGIN and COMMIT or without: it has one
// transaction number and one grant, a failure up to the commit rolls back everything, procedures
// can't end it, and the connection stays usable.
func TestABatchIsOneTransaction(t *testing.T) {
	t.Parallel()
	each(t, modes, func(t *testing.T, _ string, mode pgx.QueryExecMode) { //nolint:thelper // it is the test itself
		g, table := newProtectedTable(t)
		parent := g.table("parent", "(id int PRIMARY KEY)")
		late := g.table("late", "(id int REFERENCES "+parent+" DEFERRABLE INITIALLY DEFERRED)")
		g.sql("CREATE PROCEDURE pglock.commits(v int) LANGUAGE plpgsql AS $$ BEGIN COMMIT; END $$")
		var sent queued
		old, f := g.grant("n", time.Minute), g.grant("n", time.Minute)
		pool := g.single(mode, func(c *pgxpool.Config) { c.ConnConfig.Tracer = &sent })
		bound := "coalesce(current_setting('" + settings(g)["grants"] + "', true), '')"
		var pid, again int
		var none string
		first := "SELECT pg_backend_pid(), " + bound + " || current_setting('idle_in_transaction_session_timeout')"
		ok(t, pool.QueryRow(t.Context(), first).Scan(&pid, &none))

		for extra, more := range map[string]int{"SELECT 1": 0, "SET LOCAL lock_timeout = '1s'": 3, "SELECT 1;": 3, "-- x\nSELECT 1": 3, "VALUES (1)": 3} {
			var first, last, grants string
			b := &pgx.Batch{}
			b.Queue("SELECT (txid_current() + $1::int)::text", 0).QueryRow(func(row pgx.Row) error { return row.Scan(&first) })
			b.Queue(extra)
			b.Queue("SELECT txid_current()::text, " + bound).QueryRow(func(row pgx.Row) error { return row.Scan(&last, &grants) })
			want(t, extra, fencing.Batch(t.Context(), pool, f, b), nil)
			if first != last || first == "" || grants == "" {
				t.Errorf("%s: transactions %s and %s, grants %s", extra, first, last, grants)
			}
			if n := len(sent.statements); n != 4+more || more > 0 && (sent.statements[0] != "begin" || sent.statements[n-1] != "commit") {
				t.Errorf("%s: sent %q", extra, sent.statements)
			}
		}

		forged := fencing.Fence{Schema: g.schema, Name: "n", Token: f.Token + 1}
		for what, tc := range map[string]struct {
			fence fencing.Fence
			last  []string
			code  string
		}{
			"a stale grant":                     {old, nil, "PGL01"},
			"a forged grant":                    {forged, nil, "PGL01"},
			"a function that is not there":      {f, []string{"SELECT never()"}, "42883"},
			"fails at the commit":               {f, []string{"INSERT INTO " + late + " VALUES (1)"}, "23503"},
			"fails at an explicit commit":       {f, []string{"INSERT INTO " + late + " VALUES (1)", "SET LOCAL lock_timeout = '1s'"}, "23503"},
			"a procedure that commits":          {f, []string{g.named("CALL pglock.commits(1)")}, "2D000"},
			"a block that commits":              {f, []string{"DO $$ BEGIN COMMIT; END $$"}, "2D000"},
			"what can't be in a transaction":    {f, []string{"VACUUM " + late}, "25001"},
			"a savepoint that is not there":     {f, []string{"RELEASE SAVEPOINT never"}, "3B001"},
			"a second one that does not parse":  {f, []string{"SELECT FROM FROM"}, "42601"},
			"a later one that fails at runtime": {f, []string{"SELECT 1/(count(*)-1) FROM " + late}, "22012"},
		} {
			b := batch(append([]string{"INSERT INTO " + late + " VALUES (NULL)", "INSERT INTO " + table + " VALUES (1, 0)"}, tc.last...)...)
			wantCode(t, what, fencing.Batch(t.Context(), pool, tc.fence, b), tc.code)
			g.holds(late, "")
			g.holds(table, "")
		}
		want(t, "a write", fencing.Batch(t.Context(), pool, f, batch("INSERT INTO "+table+" VALUES (1, 0)")), nil)
		g.holds(table, "(1,0,%d)", f.Token)
		f.Schema = "no such schema"
		want(t, "no schema", fencing.Batch(t.Context(), pool, f, batch("SELECT 1")), fencing.ErrSchemaMissing)
		want(t, "no batch", fencing.Batch(t.Context(), pool, f, nil), fencing.ErrInvalidOption)
		f.Schema = g.schema
		want(t, "nothing in it", fencing.Batch(t.Context(), pool, f, &pgx.Batch{}), nil)
		if err := pool.QueryRow(t.Context(), first).Scan(&again, &none); err != nil || again != pid || none != "0" {
			t.Errorf("session %d became %d, which has the grant and limit %q: %v", pid, again, none, err)
		}
	})
}

// sender is a pool, a connection or a transaction of pgx.
type sender interface {
	SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults
}

// TestBatchInATransaction of the caller's commits with it. A sender that does not report whether it
// is in a transaction is refused.
func TestBatchInATransaction(t *testing.T) {
	t.Parallel()
	g, table := newProtectedTable(t)
	f := g.grant("n", time.Minute)
	conn := g.conn()
	g.exec(conn, "BEGIN")
	for name, db := range map[string]interface {
		execer
		sender
	}{"a Tx": g.begin(), "a connection": conn.Conn()} {
		for _, s := range []string{"INSERT INTO " + table + " VALUES (1, 0)", "SET LOCAL lock_timeout = '1s'", "DO $$ BEGIN NULL; END $$"} {
			want(t, name+": "+s, fencing.Batch(t.Context(), db, f, batch(s)), nil)
		}
		g.holds(table, "") // not committed
		g.exec(db, "ROLLBACK")
		g.holds(table, "")
	}
	for name, db := range map[string]sender{"a pool's connection": conn, "a connection": conn.Conn()} {
		wantCode(t, "a block that commits, on "+name, fencing.Batch(t.Context(), db, f, batch("DO $$ BEGIN COMMIT; END $$")), "2D000")
	}
	silent := struct{ sender }{g.writer}
	want(t, "an unknown sender", fencing.Batch(t.Context(), silent, f, batch("INSERT INTO "+table+" VALUES (1, 0)")), fencing.ErrInvalidOption)
	g.holds(table, "")
}

// TestBatchTakesOneRoundTrip once its statements are prepared. The control sends the same statements
// in an ordinary transaction.
func TestBatchTakesOneRoundTrip(t *testing.T) {
	t.Parallel()
	g := newFixture(t)
	update := "UPDATE " + g.table("t", columns) + " SET v = v + 1"
	f := g.grant("n", time.Minute)
	for name, mode := range modes {
		if mode == pgx.QueryExecModeDescribeExec {
			continue // asks the server about each statement each time
		}
		conn, err := g.single(mode, pgtest.CountTurns).Acquire(t.Context())
		ok(t, err)
		defer conn.Release()
		turns := func(call func() error) int64 {
			t.Helper()
			ok(t, call()) // prepares its statements
			before := pgtest.Turns(conn.Conn())
			ok(t, call())
			return pgtest.Turns(conn.Conn()) - before
		}
		ours := turns(func() error { return fencing.Batch(t.Context(), conn, f, batch(update)) })
		control := turns(func() error {
			return pgx.BeginFunc(t.Context(), conn, func(tx pgx.Tx) error {
				_, err := tx.Exec(t.Context(), update)
				return errors.Join(fencing.Check(t.Context(), tx, f), err)
			})
		})
		if ours != 1 || control < 4 {
			t.Errorf("%s: %d round trips; control: four statements took %d", name, ours, control)
		}
	}
}

// TestP04_BatchKeepsItsGrant up to its commit: no takeover comes between the guard and the last
// statement. The control sends the same statements one by one.
func TestP04_BatchKeepsItsGrant(t *testing.T) {
	t.Parallel()
	each(t, modes, func(t *testing.T, _ string, mode pgx.QueryExecMode) { //nolint:thelper // it is the test itself
		g := newFixture(t)
		f := g.grant("n", time.Minute)
		gate := g.table("gate", columns)
		g.sql("INSERT INTO " + gate + " VALUES (1, 0)")
		write := "UPDATE " + gate + " SET v = v + 1"
		pool := g.single(mode)
		free := func(send func() error) (free bool) {
			t.Helper()
			closed := g.beginOn(g.pool, pgx.TxOptions{})
			g.exec(closed, "SELECT FROM "+gate+" FOR UPDATE")
			ended := make(chan error, 1)
			go func() { ended <- send() }()
			locktest.WaitingAs(t, g.pool, g.writer, 1)
			free = g.free("n")
			ok(t, closed.Rollback(t.Context()))
			want(t, "the statements", <-ended, nil)
			return free
		}
		if free(func() error { return fencing.Batch(t.Context(), pool, f, batch("SELECT 1", write)) }) {
			t.Error("a takeover could come between the guard and the last statement")
		}
		if !free(func() error {
			_, err := pool.Exec(t.Context(), g.named("SELECT pglock.bind($1::text, $2::bigint)"), f.Name, int64(f.Token))
			if err == nil {
				_, err = pool.Exec(t.Context(), write)
			}
			return err
		}) {
			t.Error("control: one by one the grant is held, too")
		}
	})
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
	pgtest.Eventually(t, "the grant is free to be taken over", func() bool { return g.free("n") })
	g.holds(table, "")
	pgtest.Eventually(t, "the connection is back", func() bool { return g.writer.Stat().AcquiredConns() == 0 })
}

// TestBatchThatEndsItsTransaction gets an error, however that is written: what came before was
// written as the holder, and nothing that came after stays. The control is the same text without
// the word.
func TestBatchThatEndsItsTransaction(t *testing.T) {
	t.Parallel()
	each(t, modes, func(t *testing.T, _ string, mode pgx.QueryExecMode) { //nolint:thelper // it is the test itself
		g := newFixtureOn(t, prepared(t))
		table := g.table("t", columns)
		f := g.grant("n", time.Minute)
		pool := g.single(mode)
		first, last := "INSERT INTO "+table+" VALUES (1, 0)", "INSERT INTO "+table+" VALUES (2, 0)"
		for _, word := range []string{"COMMIT", "-- x\rCOMMIT", "/* a /* b */ */ end", "ROLLBACK", "ABORT", "COMMIT AND CHAIN", "PREPARE TRANSACTION 'p'"} {
			tx := g.begin()
			for db, statements := range map[sender][]string{pool: {first, word, last}, tx: {first, word}} {
				g.sql("DELETE FROM " + table)
				want(t, word, fencing.Batch(t.Context(), db, f, batch(statements...)), fencing.ErrInvalidOption)
				if db == sender(tx) {
					_ = tx.Rollback(t.Context()) // it has ended
				}
				if word == "PREPARE TRANSACTION 'p'" {
					g.sql("ROLLBACK PREPARED 'p'")
				}
				if n := value[int](g, "SELECT count(*) FROM "+table+" WHERE id = 2"); n != 0 {
					t.Errorf("%q: what came after it stays", word)
				}
			}
		}
		g.sql("DELETE FROM " + table)
		for _, word := range []string{"SELECT 'COMMIT'", "begin", "SAVEPOINT a; -- COMMIT"} {
			want(t, "control: "+word, fencing.Batch(t.Context(), pool, f, batch(word)), nil)
		}
		want(t, "control", fencing.Batch(t.Context(), pool, f, batch(first, last)), nil)
		g.holds(table, "(1,0) (2,0)")
	})
}
