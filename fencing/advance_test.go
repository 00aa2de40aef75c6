package fencing_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglock/pglock-go/fencing"
	"github.com/pglock/pglock-go/internal/locktest"
)

// advance is Advance in a transaction of its own.
func (g fixture) advance(ctx context.Context, resource string, token fencing.Token) error {
	return pgx.BeginFunc(ctx, g.writer, func(tx pgx.Tx) error {
		return fencing.Advance(ctx, tx, resource, token, fencing.WithSchema(g.schema))
	})
}

func TestAdvance(t *testing.T) {
	t.Parallel()
	g := newFixture(t)
	for _, step := range []struct {
		resource       string
		token, current fencing.Token // current of the refusal, 0 if it passes
	}{
		{"r", 5, 0}, {"r", 5, 0}, {"r", 4, 5}, {"r", 7, 0}, {"r", 5, 7}, {"other", 1, 0}, {"r", 1 << 62, 0}, {"r", 8, 1 << 62},
	} {
		err := g.advance(t.Context(), step.resource, step.token)
		if step.current == 0 {
			want(t, fmt.Sprint(step), err, nil)
		} else {
			wantStale(t, fmt.Sprint(step), err, fencing.StaleError{Resource: step.resource, Token: step.token, Current: step.current})
		}
	}
	for what, err := range map[string]error{
		"no resource":   g.advance(t.Context(), "", 1),
		"a long one":    g.advance(t.Context(), strings.Repeat("r", 513), 1),
		"token 0":       g.advance(t.Context(), "r", 0),
		"a negative":    g.advance(t.Context(), "r", -1),
		"NUL in it":     g.advance(t.Context(), "\x00", 1),
		"one not UTF-8": g.advance(t.Context(), "\xff", 1),
	} {
		want(t, what, err, fencing.ErrInvalidFence)
	}
	want(t, "a schema that isn't there", fencing.Advance(t.Context(), g.begin(), "r", 1, fencing.WithSchema("no such schema")), fencing.ErrSchemaMissing)
	want(t, "no database", fencing.NewTableChecker(nil).Accept(t.Context(), "r", 1), fencing.ErrInvalidOption)
	want(t, "no table's database", fencing.Protect(t.Context(), nil, "t"), fencing.ErrInvalidOption)
	want(t, "no schema", fencing.Advance(t.Context(), g.begin(), "r", 1, fencing.WithSchema("")), fencing.ErrInvalidOption)
}

// TestAdvanceOfOneTokenTwice: two transactions come with the mark's own token while a third one
// raises the mark. Both are stale, and do not wait for each other.
func TestAdvanceOfOneTokenTwice(t *testing.T) {
	t.Parallel()
	g := newFixture(t)
	in := fencing.WithSchema(g.schema)
	raise := func(tx pgx.Tx, token fencing.Token) error {
		err := fencing.Advance(t.Context(), tx, "r", token, in)
		if err == nil {
			err = tx.Commit(t.Context())
		}
		_ = tx.Rollback(context.Background())
		return err
	}
	for round := range 5 {
		mark := fencing.Token(10 * (round + 1))
		want(t, "the mark", raise(g.begin(), mark), nil)
		newer := g.begin()
		want(t, "a newer token", fencing.Advance(t.Context(), newer, "r", mark+1, in), nil)
		waiting := make(chan error, 2)
		for range cap(waiting) {
			tx := g.begin()
			go func() { waiting <- raise(tx, mark) }()
		}
		locktest.WaitingAs(t, g.pool, g.writer, 2)
		want(t, "its commit", newer.Commit(t.Context()), nil)
		for range cap(waiting) {
			want(t, "the mark's own token", <-waiting, fencing.ErrStale)
		}
	}
}

// TestAdvanceIsMonotone: while many transactions raise one mark at once, the accepted tokens never
// go down in the order of the server's commits. The control compares and writes in two statements.
func TestAdvanceIsMonotone(t *testing.T) {
	t.Parallel()
	g := newFixture(t)
	// The accepted transaction writes to history while it holds the mark's lock.
	history := g.table("history", "(n bigint GENERATED ALWAYS AS IDENTITY, how text, token bigint)")
	mark := g.table("mark", "(token bigint)")
	g.sql("INSERT INTO " + mark + " VALUES (0)")
	const workers, rounds = 8, 40
	var all sync.WaitGroup
	for range workers {
		all.Go(func() {
			for i := range rounds {
				token := fencing.Token(1 + rand.Int64N(int64(10*(i+1))))
				err := pgx.BeginFunc(t.Context(), g.writer, func(tx pgx.Tx) error {
					if err := fencing.Advance(t.Context(), tx, "r", token, fencing.WithSchema(g.schema)); err != nil {
						return err
					}
					_, err := tx.Exec(t.Context(), "INSERT INTO "+history+" (how, token) VALUES ('advance', $1)", int64(token))
					return err
				})
				if err != nil && !errors.Is(err, fencing.ErrStale) {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	backwards := func(how string) int {
		return value[int](g, "SELECT count(*) FROM (SELECT token, max(token) OVER (ORDER BY n) AS newest FROM "+history+" WHERE how = $1) h WHERE token < newest", how)
	}
	if n := backwards("advance"); n > 0 {
		t.Errorf("%d tokens were accepted after newer ones", n)
	}
	if n := value[int](g, "SELECT count(*) FROM "+history); n < 5 {
		t.Errorf("only %d were accepted at all", n)
	}
	// The control compares and writes in two statements, and another transaction writes in between.
	write := func(tx pgx.Tx, token int) error {
		return g.send(tx, sprintf("UPDATE %s SET token = %d", mark, token), sprintf("INSERT INTO %s (how, token) VALUES ('control', %d)", history, token))
	}
	first := g.begin()
	g.exec(first, sprintf("SELECT 1 / count(*) FROM %s WHERE token <= 5", mark))
	ok(t, write(g.begin(), 9))
	ok(t, write(first, 5))
	if n := backwards("control"); n != 1 {
		t.Errorf("control: a mark that is compared and written in two statements went back %d times", n)
	}
}

// TestAdvanceLocksItsMark until the transaction ends: a newer token waits, the same token does not.
func TestAdvanceLocksItsMark(t *testing.T) {
	t.Parallel()
	g := newFixture(t)
	want(t, "first", g.advance(t.Context(), "r", 5), nil)
	tx := g.begin()
	want(t, "the same", fencing.Advance(t.Context(), tx, "r", 5, fencing.WithSchema(g.schema)), nil)
	want(t, "the same, meanwhile", g.advance(t.Context(), "r", 5), nil)
	done := make(chan error, 1)
	go func() { done <- g.advance(t.Context(), "r", 6) }()
	locktest.WaitingAs(t, g.pool, g.writer, 1)
	select {
	case err := <-done:
		t.Errorf("a newer token did not wait: %v", err)
	default:
	}
	ok(t, tx.Commit(t.Context()))
	want(t, "the newer one, then", <-done, nil)
	// An older snapshot can't decide.
	tx = g.beginOn(g.writer, pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	g.exec(tx, "SELECT 1")
	want(t, "raised since", g.advance(t.Context(), "r", 9), nil)
	want(t, "on an old snapshot", fencing.Advance(t.Context(), tx, "r", 8, fencing.WithSchema(g.schema)), fencing.ErrSnapshot)
}

// TestMarksDoNotAffectTables: a role that may raise marks can't stop a holder's writes, whatever
// names it chooses.
func TestMarksDoNotAffectTables(t *testing.T) {
	t.Parallel()
	g, table := newProtectedTable(t)
	f := g.grant("n", time.Minute)
	for _, resource := range []string{"protected table 1", "protected table 2", "t", table, "n", "zz_pglock_fence"} {
		want(t, resource, g.advance(t.Context(), resource, 1<<63-1), nil)
	}
	want(t, "the holder's writes", g.as(f, "INSERT INTO "+table+" VALUES (1, 0)", "UPDATE "+table+" SET v = 1", "TRUNCATE "+table), nil)
}
