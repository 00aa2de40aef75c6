package advisory_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/advisory"
	"github.com/pglock/pglock-go/internal/pgtest"
)

// TestTimeoutDoesNotCountThePoolsWait: a connection that comes after the time-out's length leaves all of it for the lock.
func TestTimeoutDoesNotCountThePoolsWait(t *testing.T) {
	t.Parallel()
	direct := pgtest.Pool(t)
	const timeout = 2 * time.Second
	for name, call := range map[string]func(ctx context.Context, pool *pgxpool.Pool, key advisory.Key) error{
		"Do": func(ctx context.Context, pool *pgxpool.Pool, key advisory.Key) error {
			return advisory.Do(ctx, pool, key, noWork, advisory.WithTimeout(timeout))
		},
		"Do, polling": func(ctx context.Context, pool *pgxpool.Pool, key advisory.Key) error {
			return advisory.Do(ctx, pool, key, noWork, advisory.WithTimeout(timeout), advisory.WithPolling())
		},
		"Acquire": func(ctx context.Context, pool *pgxpool.Pool, key advisory.Key) error {
			s, err := advisory.Acquire(ctx, pool, key, advisory.WithTimeout(timeout))
			if err != nil {
				return err
			}
			return s.Release(ctx)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			key := advisory.NewKey("pool's wait", t.Name())
			pool := pgtest.Pool(t, func(c *pgxpool.Config) { c.MaxConns = 1 })
			conn, err := pool.Acquire(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			before := holder(t, direct, key)
			time.AfterFunc(timeout+300*time.Millisecond, conn.Release)
			result := make(chan error, 1)
			go func() { result <- call(soon(t, time.Minute), pool, key) }()
			<-time.After(timeout + 600*time.Millisecond)
			if err := before.Rollback(t.Context()); err != nil {
				t.Error(err)
			}
			if err := <-result; err != nil {
				t.Error(err)
			}
		})
	}
}
