package rowlock_test

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"
	"log"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/pglock/pglock-go/internal/testserver"
	"github.com/pglock/pglock-go/pglock/rowlock"
	"github.com/pglock/pglock-go/pglock/sqltx"
)

// shop opens a database with two tables for the examples.
func shop(ctx context.Context) (pool *pgxpool.Pool, end func()) {
	server, err := testserver.Get(ctx)
	if err != nil {
		log.Panic(err)
	}
	config, err := pgxpool.ParseConfig(server.URL)
	if err != nil {
		log.Panic(err)
	}
	schema := "shop_" + strings.ToLower(rand.Text())
	config.ConnConfig.RuntimeParams["search_path"] = schema
	if pool, err = pgxpool.NewWithConfig(ctx, config); err != nil {
		log.Panic(err)
	}
	_, err = pool.Exec(ctx, "CREATE SCHEMA "+schema+`;
		CREATE TABLE stock (sku text PRIMARY KEY, qty integer NOT NULL);
		INSERT INTO stock VALUES ('apple', 5), ('pear', 2), ('plum', 0);
		CREATE TABLE jobs (id bigint PRIMARY KEY, state text NOT NULL, due timestamptz NOT NULL);
		INSERT INTO jobs VALUES (1, 'ready', now()), (2, 'done', now()), (3, 'ready', now()), (4, 'ready', now() + interval '1 day')`)
	if err != nil {
		log.Panic(err)
	}
	return pool, func() {
		if _, err := pool.Exec(ctx, "DROP SCHEMA "+schema+" CASCADE"); err != nil {
			log.Panic(err)
		}
		pool.Close()
	}
}

var stock = rowlock.Stock{Table: rowlock.Table{Name: pgx.Identifier{"stock"}, Key: "sku"}, Quantity: "qty"}

// An order reserves all of its lines, or none. The results and the shortages are found by key.
func ExampleReserve() {
	ctx := context.Background()
	pool, end := shop(ctx)
	defer end()

	order := func(lines ...rowlock.Line[string, int]) error {
		return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			left, err := rowlock.Reserve(ctx, tx, stock, lines, rowlock.WithTimeout(2*time.Second))
			if err != nil {
				return err
			}
			if apples, ok := left.Get("apple"); ok {
				fmt.Println("reserved, apples left:", apples)
			}
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

// Rows are read and locked in one step, and changed afterwards.
func ExampleForNoKeyUpdate() {
	ctx := context.Background()
	pool, end := shop(ctx)
	defer end()

	type item struct{ Qty int }
	err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		items, err := rowlock.ForNoKeyUpdate[item](ctx, tx, stock.Table, []string{"plum", "apple"})
		if err != nil {
			return err
		}
		for sku, i := range items.All() { // in the order of the key
			fmt.Println(sku, i.Qty)
			if _, err := tx.Exec(ctx, "UPDATE stock SET qty = $2 WHERE sku = $1", sku, i.Qty+10); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		log.Print(err)
	}
	// Output:
	// apple 5
	// plum 0
}

// A worker claims jobs that are ready and that no other worker holds. If it dies, they are
// unlocked.
func ExampleClaim() {
	ctx := context.Background()
	pool, end := shop(ctx)
	defer end()

	type job struct{ ID int64 }
	jobs := rowlock.Table{Name: pgx.Identifier{"jobs"}, Key: "id"}
	err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		mine, err := rowlock.Claim[job](ctx, tx, jobs, 10, rowlock.Where("state", rowlock.Equal, "ready"), rowlock.Due("due"))
		if err != nil {
			return err
		}
		for _, j := range mine {
			fmt.Println("job", j.ID)
			if _, err := tx.Exec(ctx, "UPDATE jobs SET state = 'done' WHERE id = $1", j.ID); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		log.Print(err)
	}
	// Output:
	// job 1
	// job 3
}

// Another transaction holds the row: do something else instead of waiting. The transaction remains
// usable.
func ExampleNoWait() {
	ctx := context.Background()
	pool, end := shop(ctx)
	defer end()

	type item struct{ Qty int }
	err := pgx.BeginFunc(ctx, pool, func(holder pgx.Tx) error {
		if _, err := rowlock.ForUpdate[item](ctx, holder, stock.Table, []string{"pear"}); err != nil {
			return err
		}
		return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			_, err := rowlock.ForUpdate[item](ctx, tx, stock.Table, []string{"pear"}, rowlock.NoWait())
			fmt.Println("taken:", errors.Is(err, rowlock.ErrNotAcquired))
			others, err := rowlock.ForUpdate[item](ctx, tx, stock.Table, []string{"apple", "pear", "plum"}, rowlock.SkipLocked())
			for sku, i := range others.All() {
				fmt.Println(sku, i.Qty)
			}
			return err
		})
	})
	if err != nil {
		log.Print(err)
	}
	// Output:
	// taken: true
	// apple 5
	// plum 0
}

// A transaction of database/sql is wrapped; queries of sqlc or GORM use it as before.
func ExampleReserve_databaseSQL() {
	ctx := context.Background()
	pool, end := shop(ctx)
	defer end()
	db := stdlib.OpenDBFromPool(pool)
	defer db.Close()

	tx, err := db.BeginTx(ctx, &sql.TxOptions{})
	if err != nil {
		log.Panic(err)
	}
	defer func() { _ = tx.Rollback() }()
	left, err := rowlock.Reserve(ctx, sqltx.Wrap(tx), stock, rowlock.Lines(rowlock.Take("apple", 3), rowlock.Take("pear", 2)))
	if err != nil {
		log.Panic(err)
	}
	for sku, quantity := range left.All() { // in the order of the lines
		fmt.Println(sku, quantity)
	}
	if err := tx.Commit(); err != nil {
		log.Print(err)
	}
	// Output:
	// apple 2
	// pear 0
}
