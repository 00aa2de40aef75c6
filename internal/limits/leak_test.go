package limits

import (
	"context"
	"crypto/rand"
	"sync"

	"github.com/jackc/pgx/v5"

	"github.com/pglock/pglock-go/pglock"
)

// leaked is what the control leaks.
type leaked struct {
	mu      sync.Mutex
	calls   int
	stop    chan struct{} // ends the goroutines
	running sync.WaitGroup
	conns   []*pgx.Conn
	old     pgx.Tx // whose snapshot keeps VACUUM from freeing rows
}

// leak leaks a goroutine with 64 KiB, a row of each table, a lease that is not released, now and
// then a connection, and once a snapshot.
func (k *leaked) leak(ctx context.Context, c *churn, client *pglock.Client) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	ctx = context.WithoutCancel(ctx)
	if k.stop == nil {
		k.stop = make(chan struct{})
		var err error
		if k.old, err = c.pool.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.RepeatableRead}); err != nil {
			return err
		}
		if _, err := k.old.Exec(ctx, "SELECT FROM pglock.distributed_locks"); err != nil {
			return err
		}
	}
	if k.calls++; k.calls%40 == 0 {
		conn, err := pgx.Connect(ctx, c.pool.Config().ConnString())
		if err != nil {
			return err
		}
		k.conns = append(k.conns, conn)
	}
	memory := make([]byte, 64<<10)
	k.running.Go(func() {
		<-k.stop
		clear(memory)
	})
	if _, err := client.Semaphore("leaked "+rand.Text(), 2).TryAcquire(ctx); err != nil {
		return err
	}
	_, err := c.pool.Exec(ctx, `INSERT INTO pglock.lock_waiters (name, client, expires_at) VALUES ($1, 'gone', '1970-01-02')`, rand.Text())
	return err
}

// end ends what was leaked, after all work.
func (k *leaked) end() {
	if k.stop == nil {
		return
	}
	close(k.stop)
	k.running.Wait()
	for _, conn := range k.conns {
		conn.Close(context.Background())
	}
	if k.old != nil {
		_ = k.old.Rollback(context.Background())
	}
}
