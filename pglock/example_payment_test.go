package pglock_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/internal/locktest"
	"github.com/pglock/pglock-go/pglock"
)

// pay pays an order, unless another worker has the lock by now.
func pay(ctx context.Context, pool *pgxpool.Pool, l *pglock.Lease, order int) error {
	return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		if err := l.Guard(ctx, tx); err != nil {
			return err // errors.Is(err, pglock.ErrStale): another holder has the lock
		}
		_, err := tx.Exec(ctx, "UPDATE orders SET paid = paid + 1, payer = $2 WHERE id = $1 AND paid = 0", order, l.Holder())
		return err
	})
}

// A payment worker holds the order's lock while it calls the bank, and then records the payment. A
// worker that was paused for longer than its TTL wakes up after another one has taken over. The
// guard refuses its late write.
func Example_paymentWorker() {
	ctx := context.Background()
	pool, stop := locktest.ExamplePool( // creates a database
		"CREATE TABLE orders (id int PRIMARY KEY, paid int NOT NULL DEFAULT 0, payer text)",
		"INSERT INTO orders VALUES (7)")
	defer stop()
	client, err := pglock.Open(ctx, pool)
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close(ctx)

	paused, err := client.Acquire(ctx, "order:7", pglock.WithHolder("worker A"),
		pglock.WithTTL(100*time.Millisecond), pglock.WithRenewEvery(0)) // as if the process were suspended
	if err != nil {
		log.Fatal(err)
	}
	l, err := client.Acquire(ctx, "order:7", pglock.WithHolder("worker B")) // waits until A's lease expires
	if err != nil {
		log.Fatal(err)
	}
	if err := pay(ctx, pool, l, 7); err != nil {
		log.Fatal(err)
	}
	if err := l.Release(ctx); err != nil {
		log.Fatal(err)
	}

	err = pay(ctx, pool, paused, 7) // A wakes up
	fmt.Println("worker A is refused:", errors.Is(err, pglock.ErrStale))
	var paid int
	var payer string
	if err := pool.QueryRow(ctx, "SELECT paid, payer FROM orders WHERE id = 7").Scan(&paid, &payer); err != nil {
		log.Fatal(err)
	}
	fmt.Println("payments:", paid, "by", payer)
	// Output:
	// worker A is refused: true
	// payments: 1 by worker B
}
