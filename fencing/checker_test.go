package fencing_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/quick"

	"github.com/pglock/pglock-go/fencing"
)

// checkers are fresh ones of both kinds.
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

// TestP05_WhatACheckerAcceptsIsMonotone for each resource, and it refuses nothing that
// would be: compared with a model, over random calls.
func TestP05_WhatACheckerAcceptsIsMonotone(t *testing.T) {
	t.Parallel()
	g := newFixture(t)
	names := []string{"a", "b", "ü", "a "}
	for kind, c := range checkers(g) {
		highest := map[string]fencing.Token{}
		monotone := func(calls []call) bool {
			for _, call := range calls {
				resource, token := names[int(call.Resource)%len(names)], fencing.Token(call.Token)
				err := c.Accept(t.Context(), resource, token)
				var stale *fencing.StaleError
				switch {
				case token <= 0:
					if !errors.Is(err, fencing.ErrInvalidFence) {
						t.Errorf("%s: token %d: %v", kind, token, err)
						return false
					}
				case token < highest[resource]:
					if !errors.As(err, &stale) || *stale != (fencing.StaleError{Resource: resource, Token: token, Current: highest[resource]}) {
						t.Errorf("%s: %d after %d: %v", kind, token, highest[resource], err)
						return false
					}
				case err != nil:
					t.Errorf("%s: %d after %d: %v", kind, token, highest[resource], err)
					return false
				default:
					highest[resource] = token
				}
			}
			return true
		}
		count := 200
		if kind == "table" && !long() {
			count = 15
		}
		if err := quick.Check(monotone, &quick.Config{MaxCount: count}); err != nil {
			t.Errorf("%s: %v", kind, err)
		}
	}
}

// TestCheckersAreMonotoneUnderConcurrency: each goroutine sees what it was granted only
// grow, and the mark at the end is the highest token that anybody came with.
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
		var stale *fencing.StaleError
		if err := c.Accept(t.Context(), "r", 1); !errors.As(err, &stale) || stale.Current != workers*rounds {
			t.Errorf("%s: %v", kind, err)
		}
	}
}

// TestTableCheckersShareTheirMarks, as processes do.
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

// FuzzMemoryChecker: the bytes are resources and tokens in turn.
func FuzzMemoryChecker(f *testing.F) {
	f.Add([]byte{0, 5, 0, 4, 1, 4, 0, 6, 0, 5})
	f.Fuzz(func(t *testing.T, calls []byte) {
		var c fencing.MemoryChecker
		highest := map[byte]byte{}
		for i := 0; i+1 < len(calls); i += 2 {
			resource, token := calls[i], calls[i+1]
			err := c.Accept(t.Context(), string(rune('a')+rune(resource)), fencing.Token(token))
			if accept := token > 0 && token >= highest[resource]; accept != (err == nil) {
				t.Fatalf("%d after %d: %v", token, highest[resource], err)
			} else if accept {
				highest[resource] = token
			}
		}
	})
}
