package readme_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"os"
	"testing/fstest"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglock/pglock-go/advisory"
	"github.com/pglock/pglock-go/fencing"
	"github.com/pglock/pglock-go/internal/locktest"
	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/leader"
	"github.com/pglock/pglock-go/pglock/rowlock"
	"github.com/pglock/pglock-go/pglock/runner"
	"github.com/pglock/pglock-go/pglock/schedule"
)

// makeReport stands for a nightly job.
func makeReport(context.Context, *pglock.Lease) error { return nil }

func Example_schedule() {
	pool, end := locktest.ExamplePool()
	defer end()
	ctx, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
	defer cancel()
	client, err := pglock.Open(context.Background(), pool)
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close(context.Background())

	job, err := schedule.New(client, "nightly-report")
	if err != nil {
		log.Fatal(err)
	}
	err = job.Run(ctx, schedule.Daily("03:00", time.Local), makeReport) // until ctx is done

	fmt.Println(err)
	// Output: context deadline exceeded
}

func Example_order() {
	pool, end := locktest.ExamplePool("CREATE TABLE orders AS SELECT 7 AS id, NULL::text AS receipt")
	defer end()
	ctx := context.Background()
	client, err := pglock.Open(ctx, pool)
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close(ctx)
	pay := func(_ context.Context, key string) (string, error) { return "receipt of " + key, nil }

	err = client.Do(ctx, "order:7", func(ctx context.Context, l *pglock.Lease) error {
		receipt, err := pay(ctx, "order:7") // the key makes it one charge, if the next holder has to repeat it
		if err != nil {
			return err
		}
		return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			if err := l.Guard(ctx, tx); err != nil {
				return err // this process was paused, and another one holds the lock
			}
			_, err := tx.Exec(ctx, "UPDATE orders SET receipt = $1 WHERE id = 7", receipt)
			return err
		})
	})

	var receipt string
	fmt.Println(err, pool.QueryRow(ctx, "SELECT receipt FROM orders").Scan(&receipt), receipt)
	// Output: <nil> <nil> receipt of order:7
}

func Example_transaction() {
	pool, end := locktest.ExamplePool("CREATE TABLE discounts AS SELECT 17 AS id, false AS used")
	defer end()
	ctx := context.Background()
	client, err := pglock.Open(ctx, pool)
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close(ctx)

	err = client.DoTx(ctx, "discount:17", func(ctx context.Context, tx pgx.Tx) error {
		var used bool // as the last holder of the lock has left it
		err := tx.QueryRow(ctx, "SELECT used FROM discounts WHERE id = 17").Scan(&used)
		if err != nil || used {
			return err
		}
		_, err = tx.Exec(ctx, "UPDATE discounts SET used = true WHERE id = 17")
		return err
	}, advisory.WithTimeout(2*time.Second))

	fmt.Println(err)
	// Output: <nil>
}

func Example_inYourTransaction() {
	pool, end := locktest.ExamplePool("CREATE TABLE discounts AS SELECT 17 AS id, false AS used")
	defer end()
	ctx := context.Background()
	client, err := pglock.Open(ctx, pool)
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close(ctx)

	err = pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		if err := advisory.Lock(ctx, tx, client.Key("discount:17")); err != nil { // it ends with tx
			return err
		}
		_, err := tx.Exec(ctx, "UPDATE discounts SET used = true WHERE id = 17")
		return err
	})

	fmt.Println(err)
	// Output: <nil>
}

func Example_readersAndAWriter() {
	client, end := locktest.ExampleClient()
	defer end()
	ctx := context.Background()
	work := func(what string) func(context.Context, *pglock.Lease) error {
		return func(context.Context, *pglock.Lease) error { fmt.Println(what); return nil }
	}
	look, rebuild := work("look"), work("rebuild")

	err := client.Reader("catalog").Do(ctx, look) // together with other readers
	if err != nil {
		log.Fatal(err)
	}
	err = client.Writer("catalog").Do(ctx, rebuild) // alone; readers that come later wait for it

	fmt.Println(err)
	// Output:
	// look
	// rebuild
	// <nil>
}

func Example_rows() {
	pool, end := locktest.ExamplePool("CREATE TABLE stock (sku text PRIMARY KEY, qty int NOT NULL)", "INSERT INTO stock VALUES ('A-1', 5), ('B-7', 0)")
	defer end()
	ctx := context.Background()
	tx, err := pool.Begin(ctx)
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = tx.Rollback(ctx) }()

	stock := rowlock.Stock{Table: rowlock.Table{Name: pgx.Identifier{"stock"}, Key: "sku"}, Quantity: "qty"}
	left, err := rowlock.Reserve(ctx, tx, stock, rowlock.Lines(rowlock.Take("A-1", 2), rowlock.Take("B-7", 1)))
	var short *rowlock.ShortError // lists the items that are short; nothing was reserved, and tx stays usable

	fmt.Println(errors.As(err, &short), short.Lines[0].Key, left == nil)
	// Output: true B-7 true
}

func Example_protect() {
	pool, end := locktest.ExamplePool("CREATE TABLE accounts (id int PRIMARY KEY, balance int NOT NULL)", "INSERT INTO accounts VALUES (17, 100)")
	defer end()
	ctx := context.Background()
	client, err := pglock.Open(ctx, pool)
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close(ctx)

	err = fencing.Protect(ctx, pool, "accounts", fencing.NamedBy("account:{id}")) // once, or in SQL
	if err != nil {
		log.Fatal(err)
	}
	err = client.Do(ctx, "account:17", func(ctx context.Context, l *pglock.Lease) error {
		return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			if err := l.Bind(ctx, tx); err != nil {
				return err
			}
			_, err := tx.Exec(ctx, "UPDATE accounts SET balance = 90 WHERE id = 17") // as if there were no locks
			return fencing.Explain(err)
		})
	})

	fmt.Println(err)
	_, err = pool.Exec(ctx, "UPDATE accounts SET balance = 0")
	fmt.Println(errors.Is(fencing.Explain(err), fencing.ErrUnfenced))
	// Output:
	// <nil>
	// true
}

func Example_migrate() {
	pool, end := locktest.ExamplePool()
	defer end()
	ctx := context.Background()
	log.SetOutput(io.Discard)
	defer log.SetOutput(os.Stderr)
	embedded := fstest.MapFS{"migrations/1_orders.up.sql": {Data: []byte("CREATE TABLE orders (id int)")}}

	err := runner.Run(ctx, runner.Files(embedded, "migrations"), pool, // golang-migrate's files
		runner.WithTimeout(10*time.Minute), runner.WithLogger(slog.Default()))

	fmt.Println(err)
	// Output: <nil>
}

func Example_leader() {
	client, end := locktest.ExampleClient()
	defer end()
	ctx, shutdown := context.WithCancel(context.Background())
	serve := func(ctx context.Context, l *pglock.Lease) error {
		fmt.Println("leads, with a token:", l.Token() > 0)
		shutdown()
		<-ctx.Done()
		return ctx.Err()
	}

	err := leader.Run(ctx, client, "scheduler", func(ctx context.Context, t *leader.Term) error {
		return serve(ctx, t.Lease()) // ctx ends with the leadership
	})

	fmt.Println(err)
	// Output:
	// leads, with a token: true
	// context canceled
}

func Example_observer() {
	client, end := locktest.ExampleClient()
	defer end()
	ctx := context.Background()

	e, err := leader.New(client, "scheduler")
	if err != nil {
		log.Fatal(err)
	}
	l, err := e.Leader(ctx) // ErrNoLeader if there is none; e.Observe(ctx) follows the changes

	fmt.Println(l.Elected(), errors.Is(err, leader.ErrNoLeader))
	// Output: false true
}

func Example_pooler() {
	pool, end := locktest.ExamplePool()
	defer end()
	ctx := context.Background()
	direct := pool.Config().ConnString()

	client, err := pglock.Open(ctx, pool, pglock.WithListener(direct))

	fmt.Println(err)
	if err := client.Close(ctx); err != nil {
		log.Fatal(err)
	}
	// Output: <nil>
}
