// Transfer moves money between two accounts, after a fraud check that takes seconds.
//
//	DATABASE_URL=postgres://localhost/shop go run ./transfer transfer-1 alice bob 500
//
// Two replicas that transfer in opposite directions can't deadlock, because each acquires both accounts or
// waits with none. If one of them is suspended during the check, the other one gets the accounts when the lease
// has expired, and the guard refuses the late transfer of the first one.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/migrations"
	"github.com/pglock/pglock-go/pglock"
)

const tables = `CREATE TABLE IF NOT EXISTS balances (account text PRIMARY KEY, cents bigint NOT NULL CHECK (cents >= 0));
	CREATE TABLE IF NOT EXISTS transfers (id text PRIMARY KEY, debit text NOT NULL, credit text NOT NULL, cents bigint NOT NULL);
	INSERT INTO balances VALUES ('alice', 10000), ('bob', 10000) ON CONFLICT DO NOTHING`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if len(os.Args) != 5 {
		log.Fatal("usage: transfer ID FROM TO CENTS")
	}
	cents, err := strconv.ParseInt(os.Args[4], 10, 64)
	if err != nil {
		log.Fatal(err)
	}
	if err := run(ctx, transfer{os.Args[1], os.Args[2], os.Args[3], cents}); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, t transfer) error {
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
	err = client.Do(ctx, "tables of transfer", func(ctx context.Context, _ *pglock.Lease) error {
		_, err := pool.Exec(ctx, tables) // not by two replicas at once: IF NOT EXISTS does not exclude them
		return err
	})
	if err != nil {
		return err
	}
	check := func(context.Context, transfer) error { return nil } // stands for the fraud check
	return (&bank{client: client, pool: pool, check: check, wait: 10 * time.Second}).Transfer(ctx, t)
}

type transfer struct {
	id, from, to string
	cents        int64
}

type bank struct {
	client *pglock.Client
	pool   *pgxpool.Pool
	check  func(ctx context.Context, t transfer) error
	wait   time.Duration // for other transfers of the accounts
}

// Transfer makes a transfer unless its id was used before. So after any error, also one that leaves the commit
// in doubt, the caller can repeat it.
func (b *bank) Transfer(ctx context.Context, t transfer) error {
	if t.cents <= 0 || t.from == t.to {
		return errors.New("transfer: the amount must be positive, and the accounts must differ")
	}
	both := b.client.All(b.client.Lock("account:"+t.from), b.client.Lock("account:"+t.to))
	err := both.Do(ctx, func(ctx context.Context, l *pglock.Lease) error {
		if err := b.check(ctx, t); err != nil {
			return err
		}
		return pgx.BeginFunc(ctx, b.pool, func(tx pgx.Tx) error {
			if err := l.Guard(ctx, tx); err != nil {
				return err // another holder of an account: the check was of an older state
			}
			tag, err := tx.Exec(ctx, "INSERT INTO transfers VALUES ($1, $2, $3, $4) ON CONFLICT DO NOTHING", t.id, t.from, t.to, t.cents)
			if err != nil || tag.RowsAffected() == 0 {
				return err
			}
			tag, err = tx.Exec(ctx, `UPDATE balances SET cents = cents + CASE account WHEN $1 THEN -$3::bigint ELSE $3 END
				WHERE account IN ($1, $2)`, t.from, t.to, t.cents) // the table's CHECK refuses an overdraft
			if err == nil && tag.RowsAffected() != 2 {
				err = errors.New("no such account")
			}
			return err
		})
	}, pglock.WithWait(b.wait))
	if err != nil {
		return fmt.Errorf("transfer %q: %w", t.id, err)
	}
	return nil
}
