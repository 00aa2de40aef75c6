package fencing_test

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"testing"
	"testing/quick"

	"github.com/pglock/pglock-go/fencing"
	"github.com/pglock/pglock-go/internal/schema"
)

// checkers returns new Checkers of both kinds.
func checkers(g fixture) map[string]fencing.Checker {
	return map[string]fencing.Checker{
		"memory": &fencing.MemoryChecker{},
		"table":  fencing.NewTableChecker(g.writer, fencing.WithSchema(g.schema)),
	}
}

// call is one call of Accept, drawn by package quick.
type call struct {
	Resource uint8
	Token    int16
}

// TestP05_CheckersAreMonotone: compared with a model over random calls, a Checker accepts exactly
// the tokens that do not go down for their resource.
func TestP05_CheckersAreMonotone(t *testing.T) {
	t.Parallel()
	g := newFixture(t)
	names := []string{"a", "b", "ü", "a "}
	for kind, c := range checkers(g) {
		highest := map[string]fencing.Token{}
		monotone := func(calls []call) bool {
			for _, call := range calls {
				resource, token := names[int(call.Resource)%len(names)], fencing.Token(call.Token)
				err := c.Accept(t.Context(), resource, token)
				if token >= highest[resource] && token > 0 {
					highest[resource] = token
					want(t, kind, err, nil)
				} else if token <= 0 {
					want(t, kind, err, fencing.ErrInvalidFence)
				} else {
					wantStale(t, kind, err, fencing.StaleError{Resource: resource, Token: token, Current: highest[resource]})
				}
				if t.Failed() {
					return false
				}
			}
			return true
		}
		count := 200
		if kind == "table" && !long() {
			count = 15
		}
		want(t, kind, quick.Check(monotone, &quick.Config{MaxCount: count}), nil)
	}
}

// TestCheckersAreMonotoneUnderConcurrency: the tokens that each goroutine gets accepted only grow,
// and the mark at the end is the highest token of all.
func TestCheckersAreMonotoneUnderConcurrency(t *testing.T) {
	t.Parallel()
	g := newFixture(t)
	for kind, c := range checkers(g) {
		const workers, rounds = 8, 50
		var all sync.WaitGroup
		for w := range workers {
			all.Go(func() {
				for i := range rounds {
					token := fencing.Token(1 + i*workers + w)
					if err := c.Accept(t.Context(), "r", token); err != nil && !errors.Is(err, fencing.ErrStale) {
						t.Errorf("%s: %v", kind, err)
					}
					if err := c.Accept(t.Context(), "r", token-workers); i > 0 && err == nil {
						t.Errorf("%s: %d was accepted, and %d after it", kind, token, token-workers)
					}
				}
			})
		}
		all.Wait()
		wantStale(t, kind, c.Accept(t.Context(), "r", 1), fencing.StaleError{Resource: "r", Token: 1, Current: workers * rounds})
	}
}

// TestTableCheckersShareTheirMarks, as those of several processes do.
func TestTableCheckersShareTheirMarks(t *testing.T) {
	t.Parallel()
	g := newFixture(t)
	one, two := fencing.NewTableChecker(g.writer, fencing.WithSchema(g.schema)), fencing.NewTableChecker(g.pool, fencing.WithSchema(g.schema))
	want(t, "one", one.Accept(t.Context(), "r", 7), nil)
	want(t, "two", two.Accept(t.Context(), "r", 6), fencing.ErrStale)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := one.Accept(ctx, "r", 8); err == nil || errors.Is(err, fencing.ErrStale) {
		t.Errorf("undecided: %v", err)
	}
	want(t, "another schema", fencing.NewTableChecker(g.pool, fencing.WithSchema("no such schema")).Accept(t.Context(), "r", 8), fencing.ErrSchemaMissing)
}

// TestMemoryCheckerIsBounded: after invented names have filled it, only known ones pass.
func TestMemoryCheckerIsBounded(t *testing.T) {
	t.Parallel()
	c := fencing.MemoryChecker{Limit: 3}
	for i, name := range []string{"a", "b", "c"} {
		want(t, name, c.Accept(t.Context(), name, fencing.Token(i+1)), nil)
	}
	for range 2 {
		want(t, "a new one", c.Accept(t.Context(), "d", 9), fencing.ErrFull)
		want(t, "a known one", c.Accept(t.Context(), "b", 9), nil)
		want(t, "an older token", c.Accept(t.Context(), "c", 2), fencing.ErrStale)
	}
	var unlimited fencing.MemoryChecker
	for i := range 1_000_000 {
		if err := unlimited.Accept(t.Context(), strconv.Itoa(i), 1); err != nil {
			t.Fatalf("%d: %v", i, err)
		}
	}
	want(t, "beyond the default", unlimited.Accept(t.Context(), "d", 1), fencing.ErrFull)
}

// TestTableCheckerIsBounded by the size of its table, which the owner of the tables may set.
func TestTableCheckerIsBounded(t *testing.T) {
	t.Parallel()
	g := newFixture(t)
	c := fencing.NewTableChecker(g.writer, fencing.WithSchema(g.schema))
	want(t, "the first", c.Accept(t.Context(), "a", 1), nil)
	g.exec(g.pool, "CREATE OR REPLACE FUNCTION "+schema.Quote(g.schema)+".high_water_limit() RETURNS bigint LANGUAGE sql IMMUTABLE AS 'SELECT 32768'")
	accepted := 0
	for ; accepted < 10_000; accepted++ {
		if err := c.Accept(t.Context(), "invented "+strconv.Itoa(accepted), 1); err != nil {
			want(t, "a new one", err, fencing.ErrFull)
			break
		}
	}
	if accepted < 100 || accepted == 10_000 {
		t.Errorf("%d names were accepted in 32 kB", accepted)
	}
	want(t, "a new one", c.Accept(t.Context(), "b", 2), fencing.ErrFull)
	want(t, "a known one", c.Accept(t.Context(), "a", 2), nil)
	want(t, "an older token", c.Accept(t.Context(), "a", 1), fencing.ErrStale)
	wantCode(t, "a writer sets the limit", g.unbound("CREATE OR REPLACE FUNCTION pglock.high_water_limit() RETURNS bigint LANGUAGE sql IMMUTABLE AS 'SELECT 1'"), "42501")
}
