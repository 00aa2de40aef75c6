package fencing_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	"github.com/jackc/pgx/v5"

	"github.com/pglock/pglock-go/fencing"
)

// A holder that is overtaken can't commit: the check is part of its transaction.
func Example() {
	ctx := context.Background()
	pool, client, done := exampleDatabase("CREATE TABLE discounts (id int PRIMARY KEY, used boolean NOT NULL)", "INSERT INTO discounts VALUES (17, false)")
	defer done()

	use := func(f fencing.Fence) error {
		return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			if err := fencing.Check(ctx, tx, f); err != nil {
				return err
			}
			_, err := tx.Exec(ctx, "UPDATE discounts SET used = true WHERE id = 17")
			return err
		})
	}

	early, err := client.Acquire(ctx, "discount:17")
	if err != nil {
		log.Fatal(err)
	}
	late := overtake(ctx, client, early) // while the early holder sleeps
	err = use(early.Fence())
	fmt.Println("the early holder is refused:", errors.Is(err, fencing.ErrStale))
	fmt.Println("the late one:", use(late.Fence()))
	// Output:
	// the early holder is refused: true
	// the late one: <nil>
}

// A protected table refuses SQL that does not use locks.
func ExampleProtect() {
	ctx := context.Background()
	pool, client, done := exampleDatabase("CREATE TABLE accounts (id int PRIMARY KEY, balance int NOT NULL)", "INSERT INTO accounts VALUES (1, 100)")
	defer done()

	if err := fencing.Protect(ctx, pool, "accounts"); err != nil {
		log.Fatal(err)
	}
	_, err := pool.Exec(ctx, "UPDATE accounts SET balance = 0")
	fmt.Println("without a grant:", errors.Is(fencing.Explain(err), fencing.ErrUnfenced))

	lease, err := client.Acquire(ctx, "accounts")
	if err != nil {
		log.Fatal(err)
	}
	err = pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		if err := lease.Bind(ctx, tx); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, "UPDATE accounts SET balance = balance + 1") // such as an ORM sends
		return err
	})
	fmt.Println("with one:", err)
	// Output:
	// without a grant: true
	// with one: <nil>
}

// Each row belongs to a lock of its own, and a transfer holds two of them.
func ExampleBind() {
	ctx := context.Background()
	pool, client, done := exampleDatabase("CREATE TABLE accounts (id int PRIMARY KEY, balance int NOT NULL)", "INSERT INTO accounts VALUES (1, 100), (2, 0), (3, 0)")
	defer done()
	if err := fencing.Protect(ctx, pool, "accounts", fencing.NamedBy("account:{id}")); err != nil {
		log.Fatal(err)
	}
	one, err := client.Acquire(ctx, "account:1")
	if err != nil {
		log.Fatal(err)
	}
	two, err := client.Acquire(ctx, "account:2")
	if err != nil {
		log.Fatal(err)
	}
	transfer := func(to int) error {
		return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			if err := errors.Join(one.Bind(ctx, tx), two.Bind(ctx, tx)); err != nil {
				return err
			}
			_, err := tx.Exec(ctx, "UPDATE accounts SET balance = balance + CASE id WHEN 1 THEN -5 ELSE 5 END WHERE id IN (1, $1)", to)
			return fencing.Explain(err)
		})
	}
	fmt.Println("to account 2:", transfer(2))
	fmt.Println("to account 3, whose lock is not bound:", errors.Is(transfer(3), fencing.ErrOtherLock))
	// Output:
	// to account 2: <nil>
	// to account 3, whose lock is not bound: true
}

// The guard and the writes are sent together and take one round trip.
func ExampleBatch() {
	ctx := context.Background()
	pool, client, done := exampleDatabase("CREATE TABLE stock (item text PRIMARY KEY, n int NOT NULL)", "INSERT INTO stock VALUES ('bolt', 10)")
	defer done()
	lease, err := client.Acquire(ctx, "stock")
	if err != nil {
		log.Fatal(err)
	}
	var left int
	take := func() *pgx.Batch {
		b := &pgx.Batch{}
		b.Queue("UPDATE stock SET n = n - 1 WHERE item = $1", "bolt")
		b.Queue("SELECT n FROM stock WHERE item = $1", "bolt").QueryRow(func(row pgx.Row) error { return row.Scan(&left) })
		return b
	}
	fmt.Println(fencing.Batch(ctx, pool, lease.Fence(), take()), left)
	overtake(ctx, client, lease)
	err = fencing.Batch(ctx, pool, lease.Fence(), take())
	fmt.Println(errors.Is(err, fencing.ErrStale), left)
	// Output:
	// <nil> 9
	// true 9
}

// A file has no token column. The mark of its resource takes the column's place.
func ExampleAdvance() {
	ctx := context.Background()
	pool, client, done := exampleDatabase()
	defer done()
	early, err := client.Acquire(ctx, "report")
	if err != nil {
		log.Fatal(err)
	}
	late := overtake(ctx, client, early)
	publish := func(token fencing.Token) error {
		return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			if err := fencing.Advance(ctx, tx, "file:/reports/today.pdf", token); err != nil {
				return err
			}
			return nil // rename the file here: no holder of a newer token does before the commit
		})
	}
	fmt.Println(publish(late.Token()))
	fmt.Println(errors.Is(publish(early.Token()), fencing.ErrStale))
	// Output:
	// <nil>
	// true
}

// Another process on the same database writes for the holder: it receives the fence as text.
func ExampleParseFence() {
	ctx := context.Background()
	pool, client, done := exampleDatabase()
	defer done()
	lease, err := client.Acquire(ctx, "nightly report")
	if err != nil {
		log.Fatal(err)
	}
	text, err := lease.Fence().MarshalText()
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s\n", text) // an argument, a message in a queue

	f, err := fencing.ParseFence(string(text))
	if err != nil {
		log.Fatal(err)
	}
	err = pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error { return fencing.Check(ctx, tx, f) })
	fmt.Println(err)
	_, err = fencing.ParseFence("nightly report")
	fmt.Println(errors.Is(err, fencing.ErrInvalidFence))
	// Output:
	// nightly report@1
	// <nil>
	// true
}
