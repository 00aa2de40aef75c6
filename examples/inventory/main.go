// Inventory places an order for items of a stock, all of them or none.
//
//	DATABASE_URL=postgres://localhost/shop go run ./inventory cart-1 apple=1 pear=2
//
// Two replicas that sell the same items wait for each other's rows for the length of a short transaction, and
// nothing is sold twice. The lock of the cart excludes a second click on "buy" while the price service is
// asked, which takes too long for a row lock.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/migrations"
	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/rowlock"
)

const tables = `CREATE TABLE IF NOT EXISTS stock (sku text PRIMARY KEY, qty integer NOT NULL);
	CREATE TABLE IF NOT EXISTS orders (cart text PRIMARY KEY, cents bigint NOT NULL);
	INSERT INTO stock VALUES ('apple', 5), ('pear', 2) ON CONFLICT DO NOTHING`

var stock = rowlock.Stock{Table: rowlock.Table{Name: pgx.Identifier{"stock"}, Key: "sku"}, Quantity: "qty"}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if len(os.Args) < 3 {
		log.Fatal("usage: inventory CART ITEM=QUANTITY...")
	}
	if err := run(ctx, os.Args[1], os.Args[2:]); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, cart string, items []string) error {
	var lines []rowlock.Line[string]
	for _, item := range items {
		sku, quantity, _ := strings.Cut(item, "=")
		lines = append(lines, rowlock.Line[string]{Key: sku, Quantity: rowlock.Decimal(quantity)})
	}
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
	err = client.Do(ctx, "tables of inventory", func(ctx context.Context, _ *pglock.Lease) error {
		_, err := pool.Exec(ctx, tables) // not by two replicas at once: IF NOT EXISTS does not exclude them
		return err
	})
	if err != nil {
		return err
	}
	price := func(context.Context, []rowlock.Line[string]) (int64, error) { return 499, nil } // stands for the service
	err = (&shop{client: client, pool: pool, price: price}).Order(ctx, cart, lines)
	if errors.Is(err, pglock.ErrNotAcquired) || errors.Is(err, pglock.ErrUnavailable) {
		return fmt.Errorf("nothing was ordered, try again: %w", err)
	}
	return err // a *rowlock.ShortError has each item that is short, and how many there are
}

type shop struct {
	client *pglock.Client
	pool   *pgxpool.Pool
	price  func(ctx context.Context, lines []rowlock.Line[string]) (cents int64, err error)
}

// Order writes the order of a cart and reserves its items, in one transaction. A cart that was ordered before
// stays as it is. The error wraps rowlock.ErrShort if an item is short, and pglock.ErrNotAcquired if another
// call orders the cart.
func (s *shop) Order(ctx context.Context, cart string, lines []rowlock.Line[string]) error {
	return s.client.TryDo(ctx, "cart:"+cart, func(ctx context.Context, l *pglock.Lease) error {
		cents, err := s.price(ctx, lines)
		if err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(ctx, 5*time.Second) // bounds the wait for rows
		defer cancel()
		return pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
			if err := l.Guard(ctx, tx); err != nil {
				return err // another call may have ordered the cart, at another price
			}
			tag, err := tx.Exec(ctx, "INSERT INTO orders VALUES ($1, $2) ON CONFLICT DO NOTHING", cart, cents)
			if err != nil || tag.RowsAffected() == 0 {
				return err
			}
			_, err = rowlock.Reserve(ctx, tx, stock, lines)
			return err
		})
	})
}
