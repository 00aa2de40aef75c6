package advisory_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/advisory"
	"github.com/pglock/pglock-go/internal/pgtest"
)

// TestP35_PoolerGoesRound: one that lends its sessions in turn gives two connections that ask by turns the same ones each time.
func TestP35_PoolerGoesRound(t *testing.T) {
	t.Parallel()
	through := pgtest.Pooler(t, pgtest.URL(t), "transaction", "server_round_robin = 1")
	for _, sessions := range []int{2, 3, 4} {
		warm := pgtest.PoolOn(t, through, plain)
		var all []pgx.Tx
		for range sessions {
			all = append(all, begin(t, warm))
		}
		for _, tx := range all {
			if err := tx.Rollback(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		for range 4 {
			refused(t, through)
		}
	}
}

// TestP35_BusyPooler: with others at work it may be the same session by chance.
func TestP35_BusyPooler(t *testing.T) {
	t.Parallel()
	through := pgtest.Pooler(t, pgtest.URL(t), "transaction", "default_pool_size = 4")
	load := pgtest.PoolOn(t, through, plain)
	ctx, cancel := context.WithCancel(t.Context())
	var others sync.WaitGroup
	for range 8 {
		others.Go(func() {
			for ctx.Err() == nil {
				_, _ = load.Exec(ctx, "SELECT pg_sleep(0.0005)") // ends with ctx
			}
		})
	}
	for range 30 {
		refused(t, through)
	}
	cancel()
	others.Wait()
}

// TestI9_CancelWhileThePoolerIsFull: the second connection, which looks for a pooler, may wait for long.
func TestI9_CancelWhileThePoolerIsFull(t *testing.T) {
	t.Parallel()
	through := pgtest.Pooler(t, pgtest.URL(t), "session", "default_pool_size = 1", "query_wait_timeout = 60")
	pool := pgtest.PoolOn(t, through)
	begun := time.Now()
	_, err := advisory.Acquire(soon(t, 500*time.Millisecond), pool, advisory.NewKey("pooler", t.Name()))
	if took := time.Since(begun); !isAll(err, advisory.ErrNotAcquired, context.DeadlineExceeded) || took > 20*time.Second {
		t.Errorf("after %v: %v", took, err)
	}
	whole(t, pool)
}

// plain is for poolers that do not know prepared statements.
func plain(c *pgxpool.Config) { c.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeSimpleProtocol }

// refused fails the test unless the pooler is found out on a new connection.
func refused(t *testing.T, through string) {
	t.Helper()
	pool := pgtest.PoolOn(t, through, plain)
	defer pool.Close()
	s, err := advisory.TryAcquire(soon(t, time.Minute), pool, advisory.NewKey("pooler", t.Name()))
	if errors.Is(err, advisory.ErrPooled) {
		return
	}
	t.Errorf("a session lock behind a pooler in transaction mode: %v", err)
	if err == nil {
		_ = s.Release(t.Context())
	}
}
