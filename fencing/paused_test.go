package fencing_test

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglock/pglock-go/fencing"
	"github.com/pglock/pglock-go/internal/locktest"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/internal/schema"
	"github.com/pglock/pglock-go/pglock"
)

// counterSQL creates a table that holders increment by reading and writing, and one in which each
// write makes an entry in the same transaction.
const counterSQL = `
	CREATE TABLE pglock.counter (id int PRIMARY KEY, n int NOT NULL, fence_token bigint NOT NULL DEFAULT 0);
	INSERT INTO pglock.counter VALUES (1, 0);
	CREATE TABLE pglock.entries (at bigint GENERATED ALWAYS AS IDENTITY, token bigint NOT NULL);`

// TestI4_ThePausedHolder: a holder reads under its lock and is paused before it writes, for longer than
// its lease, which nothing renews meanwhile. Another holder reads and writes, and then the first one
// writes. In the control, without a fence, each round loses an update and accepts a stale write.
// (Package chaos pauses whole processes.)
func TestI4_ThePausedHolder(t *testing.T) {
	t.Parallel()
	const (
		unfenced = "no fence"
		column   = "token column"
		guarded  = "guard"
		bound    = "protected table"
	)
	rounds := 6
	if long() {
		rounds = 200
	}
	for how, outcome := range map[string]error{unfenced: nil, column: fencing.ErrStale, guarded: fencing.ErrStale, bound: fencing.ErrStale} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			g := newFixture(t)
			g.sql(counterSQL)
			user := pgtest.UserPool(t, g.pool, g.schema)
			g.sql("GRANT SELECT, INSERT, UPDATE ON pglock.counter, pglock.entries TO " + schema.Quote(pgtest.RoleOf(user)))
			if how == bound {
				g.protect(schema.Quote(g.schema) + ".counter")
			}
			read := func() int { return value[int](g, "SELECT n FROM pglock.counter") }
			write := func(f fencing.Fence, n int) error {
				tx := g.beginOn(user, pgx.TxOptions{})
				defer func() { _ = tx.Rollback(t.Context()) }() // a refused one would keep its connection
				update := sprintf("UPDATE pglock.counter SET n = %d, fence_token = %d WHERE id = 1", n, f.Token)
				var err error
				switch how {
				case column:
					update += sprintf(" AND fence_token <= %d", f.Token)
				case guarded:
					err = fencing.Check(t.Context(), tx, f)
				case bound:
					err = fencing.Bind(t.Context(), tx, f)
				}
				if err != nil {
					return err
				}
				tag, err := tx.Exec(t.Context(), g.named(update))
				if err == nil && tag.RowsAffected() == 0 {
					err = fencing.ErrStale // the answer of the column
				}
				if err != nil {
					return err
				}
				return g.commit(tx, sprintf("INSERT INTO pglock.entries (token) VALUES (%d)", f.Token))
			}
			client := func() *pglock.Client { return locktest.ClientOn(t, user, pglock.WithSchema(g.schema)) }
			paused, rival := client(), client()
			for range rounds {
				late, err := paused.Acquire(t.Context(), "counter", pglock.WithTTL(300*time.Millisecond), pglock.WithRenewEvery(0))
				ok(t, err)
				n := read()
				next, err := rival.Acquire(t.Context(), "counter") // waits for the expiry
				ok(t, err)
				want(t, "the next holder", write(next.Fence(), read()+1), nil)
				ok(t, next.Release(t.Context()))
				want(t, "the paused holder", write(late.Fence(), n+1), outcome)
				_ = late.Release(t.Context()) // it was lost
			}
			writes := value[int](g, "SELECT count(*) FROM pglock.entries")
			lost := writes - read()
			stale := value[int](g, "SELECT count(*) FROM (SELECT token, max(token) OVER (ORDER BY at) AS newest FROM pglock.entries) e WHERE token < newest")
			wantLost := 0
			if how == unfenced { // the control must lose
				wantLost = rounds
			}
			if writes != rounds+wantLost || lost != wantLost || stale != wantLost {
				t.Errorf("in %d rounds: %d writes, %d lost, %d stale", rounds, writes, lost, stale)
			}
		})
	}
}
