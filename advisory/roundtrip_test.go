package advisory_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/advisory"
	"github.com/pglock/pglock-go/internal/pgtest"
)

// TestDoTakesTwoRoundTrips: one before the function and one after it, once the statements are
// prepared. If the server's default isolation level is above READ COMMITTED, Do learns of it with
// the lock, and needs one more.
func TestDoTakesTwoRoundTrips(t *testing.T) {
	t.Parallel()
	for _, mode := range []pgx.QueryExecMode{pgx.QueryExecModeCacheStatement, pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol} {
		for deflt, byDefault := range map[string]int64{"read committed": 1, "serializable": 2} {
			t.Run(mode.String()+", "+deflt, func(t *testing.T) {
				t.Parallel()
				pool := pgtest.Pool(t, pgtest.CountTurns, func(c *pgxpool.Config) {
					c.ConnConfig.DefaultQueryExecMode = mode
					c.ConnConfig.RuntimeParams["default_transaction_isolation"] = deflt
				})
				key := advisory.NewKey("round trips", t.Name())
				for name, tc := range map[string]struct {
					opts []advisory.DoOption
					want int64 // before the function
				}{
					"default":        {nil, byDefault},
					"read committed": {[]advisory.DoOption{advisory.WithIsolation(pgx.ReadCommitted)}, 1},
					"serializable":   {[]advisory.DoOption{advisory.WithTimeout(time.Minute), advisory.WithIsolation(pgx.Serializable)}, 1},
					"keys":           {[]advisory.DoOption{advisory.WithKeys(advisory.KeyFromInt64(77)), advisory.WithIsolation(pgx.RepeatableRead)}, 1},
				} {
					var used *pgx.Conn // the pool's only connection
					var before, inside int64
					for range 2 { // the first one prepares
						if used != nil {
							before = pgtest.Turns(used)
						}
						if err := advisory.Do(t.Context(), pool, key, func(_ context.Context, tx pgx.Tx) error {
							used, inside = tx.Conn(), pgtest.Turns(tx.Conn())
							return nil
						}, tc.opts...); err != nil {
							t.Error(err)
						}
					}
					if after := pgtest.Turns(used) - inside; inside-before != tc.want || after != 1 {
						t.Errorf("%s: %d round trips before the function, %d after it, want %d and 1", name, inside-before, after, tc.want)
					}
				}
			})
		}
	}
}
