package pglock_test

import (
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/pglock"
)

// TestEveryExecMode runs the protocol in each query mode of pgx, some of which poolers in
// transaction mode need.
func TestEveryExecMode(t *testing.T) {
	t.Parallel()
	for _, mode := range []pgx.QueryExecMode{
		pgx.QueryExecModeCacheStatement, pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeDescribeExec,
		pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol,
	} {
		t.Run(mode.String(), func(t *testing.T) {
			t.Parallel()
			pool := pgtest.Pool(t, func(c *pgxpool.Config) { c.ConnConfig.DefaultQueryExecMode = mode })
			c, err := pglock.Open(t.Context(), pool, pglock.WithSchema(pgtest.Schema(t, pool)))
			if err != nil {
				t.Fatal(err)
			}
			for range 2 { // a new row, then an old one
				l, err := c.Acquire(t.Context(), "n", pglock.WithLabels(map[string]string{"k": `"v"`}))
				if err != nil {
					t.Fatal(err)
				}
				if _, err := c.TryAcquire(t.Context(), "n"); !errors.Is(err, pglock.ErrNotAcquired) {
					t.Errorf("a second try: %v", err)
				}
				if err := l.Extend(t.Context(), time.Minute); err != nil {
					t.Errorf("Extend: %v", err)
				}
				if k, err := c.Get(t.Context(), "n"); err != nil || k.Token != l.Token() || k.Labels["k"] != `"v"` || k.Remaining < time.Minute {
					t.Errorf("Get: %+v, %v", k, err)
				}
				if err := l.Release(t.Context()); err != nil {
					t.Errorf("Release: %v", err)
				}
			}
			if _, err := c.Prune(t.Context(), 0); err != nil {
				t.Errorf("Prune: %v", err)
			}
			if err := c.Close(t.Context()); err != nil {
				t.Errorf("Close: %v", err)
			}
		})
	}
}
