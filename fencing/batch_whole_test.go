package fencing_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/fencing"
	"github.com/pglock/pglock-go/internal/pgtest"
)

// queued is what pgx sends when a batch is traced.
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
// number and one grant, what fails at the commit undoes all, and procedures can't end it.
func TestABatchIsOneTransaction(t *testing.T) {
	t.Parallel()
	for name, mode := range modes {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := newFixture(t)
			table := g.table("t", columns)
			g.protect(table)
			parent := g.table("parent", "(id int PRIMARY KEY)")
			late := g.table("late", "(id int REFERENCES "+parent+" DEFERRABLE INITIALLY DEFERRED)")
			g.sql("CREATE PROCEDURE pglock.commits(v int) LANGUAGE plpgsql AS $$ BEGIN INSERT INTO " + late + " VALUES (NULL); COMMIT; END $$")
			var sent queued
			f := g.grant("n", time.Minute)
			pool := pgtest.PoolOn(t, pgtest.URL(t), g.asWriter(mode), func(c *pgxpool.Config) { c.ConnConfig.Tracer = &sent })

			for what, tc := range map[string]struct {
				extra string
				begin int // how many statements the batch has besides
			}{"plain": {"SELECT 1", 0}, "with another": {"SET LOCAL lock_timeout = '1s'", 2}} {
				var first, last, grants string
				b := &pgx.Batch{}
				b.Queue("SELECT txid_current()::text").QueryRow(func(row pgx.Row) error { return row.Scan(&first) })
				b.Queue(tc.extra)
				b.Queue("SELECT txid_current()::text, current_setting('" + settings(g)["grants"] + "', true)").QueryRow(func(row pgx.Row) error { return row.Scan(&last, &grants) })
				want(t, what, fencing.Batch(t.Context(), pool, f, b), nil)
				if first != last || first == "" || grants == "" {
					t.Errorf("%s: transactions %s and %s, grants %s", what, first, last, grants)
				}
				if len(sent.statements) != 4+tc.begin {
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
				err := fencing.Batch(t.Context(), pool, f, tc.batch)
				var pg *pgconn.PgError
				if !errors.As(err, &pg) || pg.Code != tc.code {
					t.Errorf("%s: %v, want %s", what, err, tc.code)
				}
				g.holds(late, "")
				g.holds(table, "")
			}
			var usable bool
			if err := pool.QueryRow(t.Context(), "SELECT coalesce(current_setting('"+settings(g)["grants"]+"', true), '') = ''").Scan(&usable); err != nil || !usable {
				t.Errorf("afterwards the connection has a grant: %v, %v", usable, err)
			}
		})
	}
}

// TestP04_ABatchHoldsItsGrant up to its commit: no takeover comes between the guard and the
// last statement. In the control the same statements go one by one.
func TestP04_ABatchHoldsItsGrant(t *testing.T) {
	t.Parallel()
	for name, mode := range modes {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := newFixture(t)
			f := g.grant("n", time.Minute)
			gate := g.table("gate", columns)
			g.sql("INSERT INTO " + gate + " VALUES (1, 0)")
			pool := g.in(mode, pgtest.URL(t))
			free := func(send func() error) (free bool) {
				t.Helper()
				closed := g.beginOn(g.pool, pgx.TxOptions{})
				if _, err := closed.Exec(t.Context(), "SELECT FROM "+gate+" FOR UPDATE"); err != nil {
					t.Fatal(err)
				}
				ended := make(chan error, 1)
				go func() { ended <- send() }()
				pgtest.Eventually(t, 20*time.Second, "the last statement waits", func() bool {
					return value[bool](g, "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND usename = $1)", pgtest.RoleOf(g.writer))
				})
				free = value[bool](g, "SELECT EXISTS (SELECT FROM pglock.distributed_locks WHERE name = 'n' FOR UPDATE SKIP LOCKED)")
				if err := closed.Rollback(t.Context()); err != nil {
					t.Fatal(err)
				}
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
}

// TestABatchOnWhatDoesNotTell whether it is a transaction takes plain statements only.
func TestABatchOnWhatDoesNotTell(t *testing.T) {
	t.Parallel()
	g := newFixture(t)
	table := g.table("t", columns)
	f := g.grant("n", time.Minute)
	silent := struct{ fencing.Sender }{g.writer}
	want(t, "plain statements", fencing.Batch(t.Context(), silent, f, batch("INSERT INTO "+table+" VALUES (1, 0)")), nil)
	want(t, "a block", fencing.Batch(t.Context(), silent, f, batch("DO $$ BEGIN COMMIT; END $$")), fencing.ErrInvalidOption)
	conn, err := g.writer.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	for name, db := range map[string]fencing.Sender{"a pool's connection": conn, "a connection": conn.Conn()} {
		var pg *pgconn.PgError
		if err := fencing.Batch(t.Context(), db, f, batch("DO $$ BEGIN COMMIT; END $$")); !errors.As(err, &pg) || pg.Code != "2D000" {
			t.Errorf("a block that commits, on %s: %v", name, err)
		}
	}
	tx := g.begin()
	want(t, "a block in a transaction", fencing.Batch(t.Context(), tx, f, batch("DO $$ BEGIN NULL; END $$")), nil)
	g.holds(table, "(1,0)")
}
