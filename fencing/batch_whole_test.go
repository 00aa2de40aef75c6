package fencing_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/fencing"
	"github.com/pglock/pglock-go/internal/locktest"
	"github.com/pglock/pglock-go/internal/pgtest"
)

// queued counts the statements that pgx sends in a batch.
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
// transaction number and one grant, a failure at the commit rolls back everything, and procedures
// can't end it.
func TestABatchIsOneTransaction(t *testing.T) {
	t.Parallel()
	each(t, modes, func(t *testing.T, _ string, mode pgx.QueryExecMode) { //nolint:thelper // it is the test itself
		g, table := newProtectedTable(t)
		parent := g.table("parent", "(id int PRIMARY KEY)")
		late := g.table("late", "(id int REFERENCES "+parent+" DEFERRABLE INITIALLY DEFERRED)")
		g.sql("CREATE PROCEDURE pglock.commits(v int) LANGUAGE plpgsql AS $$ BEGIN INSERT INTO " + late + " VALUES (NULL); COMMIT; END $$")
		var sent queued
		f := g.grant("n", time.Minute)
		pool := pgtest.PoolOn(t, pgtest.URL(t), g.asWriter(mode), func(c *pgxpool.Config) { c.ConnConfig.Tracer = &sent })

		for extra, more := range map[string]int{"SELECT 1": 0, "SET LOCAL lock_timeout = '1s'": 3, "SELECT 1;": 3, "-- x\nSELECT 1": 3, "VALUES (1)": 3} {
			what := extra
			var first, last, grants string
			b := &pgx.Batch{}
			b.Queue("SELECT txid_current()::text").QueryRow(func(row pgx.Row) error { return row.Scan(&first) })
			b.Queue(extra)
			b.Queue("SELECT txid_current()::text, current_setting('" + settings(g)["grants"] + "', true)").QueryRow(func(row pgx.Row) error { return row.Scan(&last, &grants) })
			want(t, what, fencing.Batch(t.Context(), pool, f, b), nil)
			if first != last || first == "" || grants == "" {
				t.Errorf("%s: transactions %s and %s, grants %s", what, first, last, grants)
			}
			if n := len(sent.statements); n != 4+more || more > 0 && (sent.statements[0] != "begin" || sent.statements[n-1] != "commit") {
				t.Errorf("%s: sent %q", what, sent.statements)
			}
		}

		for what, tc := range map[string]struct {
			batch *pgx.Batch
			code  string
		}{
			"fails at the commit":               {batch("INSERT INTO "+late+" VALUES (1)", "INSERT INTO "+table+" VALUES (1, 0)"), "23503"},
			"fails at an explicit commit":       {batch("INSERT INTO "+late+" VALUES (1)", "SET LOCAL lock_timeout = '1s'"), "23503"},
			"a procedure that commits":          {batch("INSERT INTO "+late+" VALUES (NULL)", g.named("CALL pglock.commits(1)")), "2D000"},
			"a block that commits":              {batch("INSERT INTO "+late+" VALUES (NULL)", "DO $$ BEGIN COMMIT; END $$"), "2D000"},
			"what can't be in a transaction":    {batch("INSERT INTO "+late+" VALUES (NULL)", "VACUUM "+late), "25001"},
			"a savepoint that is not there":     {batch("INSERT INTO "+late+" VALUES (NULL)", "RELEASE SAVEPOINT never"), "3B001"},
			"a second one that does not parse":  {batch("INSERT INTO "+late+" VALUES (NULL)", "SELECT FROM FROM"), "42601"},
			"a later one that fails at runtime": {batch("INSERT INTO "+late+" VALUES (NULL)", "SELECT 1/(count(*)-1) FROM "+late), "22012"},
		} {
			wantCode(t, what, fencing.Batch(t.Context(), pool, f, tc.batch), tc.code)
			g.holds(late, "")
			g.holds(table, "")
		}
		var usable bool
		if err := pool.QueryRow(t.Context(), "SELECT coalesce(current_setting('"+settings(g)["grants"]+"', true), '') = ''").Scan(&usable); err != nil || !usable {
			t.Errorf("afterwards the connection has a grant: %v, %v", usable, err)
		}
	})
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
		pool := pgtest.PoolOn(t, pgtest.URL(t), g.asWriter(mode))
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
		write := "UPDATE " + gate + " SET v = v + 1"
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

// TestBatchThatEndsItsTransaction gets an error, however that is written: what came before was
// written as the holder, and nothing that came after stays. The control is the same text without
// the word.
func TestBatchThatEndsItsTransaction(t *testing.T) {
	t.Parallel()
	each(t, modes, func(t *testing.T, _ string, mode pgx.QueryExecMode) { //nolint:thelper // it is the test itself
		g := newFixtureOn(t, prepared(t))
		table := g.table("t", columns)
		f := g.grant("n", time.Minute)
		pool := pgtest.PoolOn(t, g.pool.Config().ConnString(), g.asWriter(mode))
		first, last := "INSERT INTO "+table+" VALUES (1, 0)", "INSERT INTO "+table+" VALUES (2, 0)"
		for _, word := range []string{"COMMIT", "-- x\rCOMMIT", "/* a /* b */ */ end", "ROLLBACK", "ABORT", "COMMIT AND CHAIN", "PREPARE TRANSACTION 'p'"} {
			tx := g.begin()
			for db, statements := range map[fencing.Sender][]string{pool: {first, word, last}, tx: {first, word}} {
				g.sql("DELETE FROM " + table)
				want(t, word, fencing.Batch(t.Context(), db, f, batch(statements...)), fencing.ErrInvalidOption)
				if db == fencing.Sender(tx) {
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

// TestBatchOnUnknownSenderIsRefused, because it does not report whether it is in a transaction.
func TestBatchOnUnknownSenderIsRefused(t *testing.T) {
	t.Parallel()
	g := newFixture(t)
	table := g.table("t", columns)
	f := g.grant("n", time.Minute)
	silent := struct{ fencing.Sender }{g.writer}
	want(t, "plain statements", fencing.Batch(t.Context(), silent, f, batch("INSERT INTO "+table+" VALUES (1, 0)")), fencing.ErrInvalidOption)
	g.holds(table, "")
	conn := g.conn()
	for name, db := range map[string]fencing.Sender{"a pool's connection": conn, "a connection": conn.Conn()} {
		wantCode(t, "a block that commits, on "+name, fencing.Batch(t.Context(), db, f, batch("DO $$ BEGIN COMMIT; END $$")), "2D000")
	}
	tx := g.begin()
	want(t, "a block in a transaction", fencing.Batch(t.Context(), tx, f, batch("DO $$ BEGIN NULL; END $$")), nil)
}
