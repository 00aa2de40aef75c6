package pgtest

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// cleanupTimeout bounds what a cleanup does on the server. A test that left a transaction open runs into it.
const cleanupTimeout = 20 * time.Second

// maxConns is a pool's size unless a test wants another. Pools of many tests share the server's connections.
const maxConns = 8

// Pool returns a pool on the shared server, changed by opts, which is closed on cleanup.
func Pool(tb testing.TB, opts ...func(*pgxpool.Config)) *pgxpool.Pool {
	tb.Helper()
	return PoolOn(tb, URL(tb), opts...)
}

// PoolOn is Pool for another server, database or way there.
func PoolOn(tb testing.TB, url string, opts ...func(*pgxpool.Config)) *pgxpool.Pool {
	tb.Helper()
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		tb.Fatalf("pgtest: %v", err)
	}
	config.MaxConns = maxConns
	for _, opt := range opts {
		opt(config)
	}
	pool, err := pgxpool.NewWithConfig(context.Background(), config)
	if err != nil {
		tb.Fatalf("pgtest: %v", err)
	}
	tb.Cleanup(pool.Close)
	return pool
}

// exec runs one statement on a connection of its own.
func execute(url, sql string) error {
	ctx, cancel := context.WithTimeout(context.Background(), cleanupTimeout)
	defer cancel()
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return err
	}
	defer conn.Close(context.Background())
	_, err = conn.Exec(ctx, sql)
	return err
}
