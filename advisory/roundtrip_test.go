package advisory_test

import (
	"context"
	"errors"
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
		for deflt, before := range map[string]int64{"read committed": 1, "serializable": 2} {
			t.Run(mode.String()+", "+deflt, func(t *testing.T) {
				t.Parallel()
				pool := pgtest.Pool(t, pgtest.CountTurns, func(c *pgxpool.Config) {
					c.ConnConfig.DefaultQueryExecMode = mode
					c.ConnConfig.RuntimeParams["default_transaction_isolation"] = deflt
				})
				key := advisory.NewKey("round trips", t.Name())
				for name, tc := range map[string]struct {
					opts   []advisory.DoOption
					before int64
				}{
					"default":         {nil, before},
					"read committed":  {[]advisory.DoOption{advisory.WithIsolation(pgx.ReadCommitted)}, 1},
					"repeatable read": {[]advisory.DoOption{advisory.WithIsolation(pgx.RepeatableRead)}, 1},
					"serializable":    {[]advisory.DoOption{advisory.WithIsolation(pgx.Serializable)}, 1},
					"timeout":         {[]advisory.DoOption{advisory.WithTimeout(time.Minute), advisory.WithIsolation(pgx.ReadCommitted)}, 1},
					"timeout, serializable": {[]advisory.DoOption{
						advisory.WithTimeout(time.Minute), advisory.WithIsolation(pgx.Serializable)}, 1},
					"keys":        {[]advisory.DoOption{advisory.WithKeys(advisory.KeyFromInt32s(77, 1)), advisory.WithIsolation(pgx.Serializable)}, 1},
					"pgx.BeginTx": {nil, 2}, // the control: not pipelined, and a lock
					"failing":     {[]advisory.DoOption{advisory.WithIsolation(pgx.Serializable)}, 1},
				} {
					for prepared := range 2 { // the first one prepares
						begin, end := turnsAround(t, pool, func(ctx context.Context, fn func(context.Context, pgx.Tx) error) error {
							switch name {
							case "pgx.BeginTx":
								return byHand(ctx, pool, key, fn)
							case "failing":
								err := advisory.Do(ctx, pool, key, func(ctx context.Context, tx pgx.Tx) error {
									return errors.Join(fn(ctx, tx), errStop)
								}, tc.opts...)
								if !errors.Is(err, errStop) {
									t.Errorf("%s: %v", name, err)
								}
								return nil
							}
							return advisory.Do(ctx, pool, key, fn, tc.opts...)
						})
						if prepared == 1 && (begin != tc.before || end != 1) {
							t.Errorf("%s: %d round trips before the function, %d after it, want %d and 1", name, begin, end, tc.before)
						}
					}
				}
			})
		}
	}
}

var errStop = errors.New("stop")

// turnsAround returns how many round trips are made before the function and after it.
func turnsAround(t *testing.T, pool *pgxpool.Pool, do func(ctx context.Context, fn func(context.Context, pgx.Tx) error) error) (before, after int64) {
	t.Helper()
	conn, err := pool.Acquire(t.Context()) // the pool's only connection
	if err != nil {
		t.Fatal(err)
	}
	used := conn.Conn()
	conn.Release()
	began, then := pgtest.Turns(t, used), int64(0)
	err = do(t.Context(), func(_ context.Context, tx pgx.Tx) error {
		if tx.Conn() != used {
			t.Error("another connection")
		}
		then = pgtest.Turns(t, used)
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	return then - began, pgtest.Turns(t, used) - then
}

// byHand begins, locks and commits in separate round trips.
func byHand(ctx context.Context, pool *pgxpool.Pool, key advisory.Key, fn func(context.Context, pgx.Tx) error) error {
	id, _ := key.Int64()
	return pgx.BeginTxFunc(ctx, pool, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "SELECT pg_advisory_xact_lock($1)", id); err != nil {
			return err
		}
		return fn(ctx, tx)
	})
}
