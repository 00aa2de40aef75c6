package rowlock_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/internal/locktest"
	"github.com/pglock/pglock-go/pglock/rowlock"
)

// shop opens a database with two tables for the examples.
func shop() (pool *pgxpool.Pool, end func()) {
	return locktest.ExamplePool("CREATE TABLE stock (sku text PRIMARY KEY, qty integer NOT NULL)",
		"INSERT INTO stock VALUES ('apple', 5), ('pear', 2), ('plum', 0)",
		"CREATE TABLE jobs (id bigint PRIMARY KEY, state text NOT NULL, due timestamptz NOT NULL)",
		"INSERT INTO jobs VALUES (1, 'ready', now()), (2, 'done', now()), (3, 'ready', now() - interval '1 h'), (4, 'ready', now() + interval '1 day')")
}

var stock = rowlock.Stock{Table: rowlock.Table{Name: pgx.Identifier{"stock"}, Key: "sku"}, Quantity: "qty"}

// An order reserves all of its lines, or none.
func ExampleReserve() {
	ctx := context.Background()
	pool, end := shop()
	defer end()

	order := func(lines ...rowlock.Line[string]) error {
		ctx, cancel := context.WithTimeout(ctx, 10*time.Second) // bounds the wait for others
		defer cancel()
		return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			left, err := rowlock.Reserve(ctx, tx, stock, lines)
			if err != nil {
				return err
			}
			fmt.Println("reserved, apples left:", left["apple"])
			return nil // here the order would be written in tx
		})
	}
	_ = order(rowlock.Take("pear", 2), rowlock.Take("apple", 1))
	err := order(rowlock.Take("apple", 3), rowlock.Take("pear", 1), rowlock.Take("fig", 1))

	var short *rowlock.ShortError
	if errors.As(err, &short) {
		for _, l := range short.Lines {
			fmt.Printf("%v: wanted %s, there are %s, unknown: %v\n", l.Key, l.Wanted, l.Available, l.Missing)
		}
	}
	// Output:
	// reserved, apples left: 4
	// pear: wanted 1, there are 0, unknown: false
	// fig: wanted 1, there are 0, unknown: true
}

// Rows are locked in one order, and then read and changed by statements of the application.
func ExampleLock() {
	ctx := context.Background()
	pool, end := shop()
	defer end()

	err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		skus, err := rowlock.Lock(ctx, tx, stock.Table, []string{"plum", "apple"}, rowlock.ForNoKeyUpdate)
		if err != nil {
			return err
		}
		for _, sku := range skus { // in the order of the key
			var qty int
			if err := tx.QueryRow(ctx, "UPDATE stock SET qty = qty + 10 WHERE sku = $1 RETURNING qty", sku).Scan(&qty); err != nil {
				return err
			}
			fmt.Println(sku, qty)
		}
		return nil
	})
	if err != nil {
		log.Print(err)
	}
	// Output:
	// apple 15
	// plum 10
}

// A worker claims jobs that are ready and that no other worker holds. If it dies, they are
// unlocked.
func ExampleClaim() {
	ctx := context.Background()
	pool, end := shop()
	defer end()

	err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		ids, err := rowlock.Claim(ctx, tx, pgx.RowTo[int64], "jobs",
			"SELECT id FROM jobs WHERE state = 'ready' AND due <= now() ORDER BY due LIMIT $1", 10)
		if err != nil {
			return err
		}
		for _, id := range ids {
			fmt.Println("job", id)
		}
		_, err = tx.Exec(ctx, "UPDATE jobs SET state = 'done' WHERE id = ANY ($1)", ids)
		return err
	})
	if err != nil {
		log.Print(err)
	}
	// Output:
	// job 3
	// job 1
}
