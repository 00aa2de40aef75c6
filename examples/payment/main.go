// Payment is a worker that charges open orders at a bank and records the receipts.
//
//	DATABASE_URL=postgres://localhost/shop go run ./payment
//
// Two replicas share the work, because the lock of an order excludes the other one from the read of its state
// to the record of its receipt. If one dies, the other one charges again under the same key, so the bank
// charges once. If one is suspended for too long, the guard refuses its late receipt.
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/migrations"
	"github.com/pglock/pglock-go/pglock"
)

const table = `CREATE TABLE IF NOT EXISTS payments (id bigint PRIMARY KEY, cents bigint NOT NULL, receipt text, worker text)`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context) error {
	pool, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		return err
	}
	defer pool.Close()
	if err := migrations.Up(ctx, pool); err != nil {
		return err
	}
	client, err := pglock.Open(ctx, pool)
	if err != nil {
		return err
	}
	defer client.Close(ctx)
	err = client.Do(ctx, "tables of payment", func(ctx context.Context, _ *pglock.Lease) error {
		_, err := pool.Exec(ctx, table) // not by two replicas at once: IF NOT EXISTS does not exclude them
		return err
	})
	if err != nil {
		return err
	}
	bank := func(_ context.Context, key string, _ int64) (string, error) { return "receipt of " + key, nil }
	w := &worker{client: client, pool: pool, charge: bank, wait: 10 * time.Second}
	log.Print("ready: pays the rows of table payments that have no receipt")
	for ctx.Err() == nil {
		if err := w.PayOpen(ctx); err != nil {
			log.Print(err) // the next round tries again
		}
		select {
		case <-ctx.Done():
		case <-time.After(time.Second):
		}
	}
	return nil
}

type worker struct {
	client *pglock.Client
	pool   *pgxpool.Pool
	charge func(ctx context.Context, key string, cents int64) (receipt string, err error)
	wait   time.Duration // for a replica that makes the same payment
}

// PayOpen pays what is open. The end of ctx ends it after the payment in progress, which is not interrupted.
func (w *worker) PayOpen(ctx context.Context) error {
	rows, _ := w.pool.Query(ctx, "SELECT id FROM payments WHERE receipt IS NULL ORDER BY id LIMIT 100")
	ids, err := pgx.CollectRows(rows, pgx.RowTo[int64]) // also returns the error of Query
	if err != nil {
		return err
	}
	for _, id := range ids {
		if ctx.Err() != nil {
			return context.Cause(ctx) // says which signal
		}
		if err := w.Pay(context.WithoutCancel(ctx), id); err != nil {
			log.Printf("payment %d stays open: %v", id, err) // and does not stop the others
		}
	}
	return nil
}

// Pay makes a payment and records its receipt, unless it has one. After any error the bank may have charged or
// not, so the next call asks it again. The key makes that one charge.
func (w *worker) Pay(ctx context.Context, id int64) error {
	key := fmt.Sprint("payment:", id)
	return w.client.Do(ctx, key, func(ctx context.Context, l *pglock.Lease) error {
		var cents int64
		var paid bool
		err := w.pool.QueryRow(ctx, "SELECT cents, receipt IS NOT NULL FROM payments WHERE id = $1", id).Scan(&cents, &paid)
		if err != nil || paid {
			return err
		}
		receipt, err := w.charge(ctx, key, cents)
		if err != nil {
			return err
		}
		return pgx.BeginFunc(ctx, w.pool, func(tx pgx.Tx) error {
			if err := l.Guard(ctx, tx); err != nil {
				return err // another worker has the payment, and records the receipt
			}
			_, err := tx.Exec(ctx, "UPDATE payments SET receipt = $2, worker = $3 WHERE id = $1", id, receipt, l.Holder())
			return err
		})
	}, pglock.WithWait(w.wait))
}
