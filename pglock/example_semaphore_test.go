package pglock_test

import (
	"context"
	"fmt"
	"log"
	"sync"
	"sync/atomic"

	"github.com/pglock/pglock-go/internal/locktest"
	"github.com/pglock/pglock-go/pglock"
)

// At most three of all processes call a slow service at the same time.
func ExampleClient_Semaphore() {
	pool, end := locktest.ExamplePool() // creates a database
	defer end()
	ctx := context.Background()
	client, err := pglock.Open(ctx, pool)
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close(ctx)
	slow := client.Semaphore("slow-service", 3)

	var calls, most atomic.Int64
	var workers sync.WaitGroup
	for range 10 {
		workers.Go(func() {
			err := slow.Do(ctx, func(context.Context, *pglock.Lease) error {
				now := calls.Add(1)
				defer calls.Add(-1)
				for old := most.Load(); now > old && !most.CompareAndSwap(old, now); old = most.Load() {
				}
				return nil // call the service
			})
			if err != nil {
				log.Print(err)
			}
		})
	}
	workers.Wait()
	fmt.Println("never more than three:", most.Load() <= 3)
	// Output: never more than three: true
}

// Many replicas read a directory. One of them rebuilds it, alone.
func ExampleClient_Reader() {
	pool, end := locktest.ExamplePool() // creates a database
	defer end()
	ctx := context.Background()
	client, err := pglock.Open(ctx, pool)
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close(ctx)
	err = client.Reader("index").Do(ctx, func(context.Context, *pglock.Lease) error {
		_, err := client.Reader("index").TryAcquire(context.Background())
		fmt.Println("another reader:", err)
		_, err = client.Writer("index").TryAcquire(context.Background())
		fmt.Println("a writer:", err != nil)
		return nil
	})
	if err != nil {
		log.Fatal(err)
	}
	// Output:
	// another reader: <nil>
	// a writer: true
}

// The writer reads on what it has written, together with other readers, and no other writer gets in
// between.
func ExampleLease_Downgrade() {
	pool, end := locktest.ExamplePool() // creates a database
	defer end()
	ctx := context.Background()
	client, err := pglock.Open(ctx, pool)
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close(ctx)
	err = client.Writer("index").Do(ctx, func(ctx context.Context, l *pglock.Lease) error {
		token := l.Token() // rebuild the index
		if err := l.Downgrade(ctx); err != nil {
			return err
		}
		reader, err := client.Reader("index").TryAcquire(context.Background())
		fmt.Println("another reader:", err, "- the same token:", l.Token() == token)
		_, err = l.TryUpgrade(ctx)
		fmt.Println("the writer again, beside a reader:", err != nil)
		return reader.Release(ctx)
	})
	if err != nil {
		log.Fatal(err)
	}
	// Output:
	// another reader: <nil> - the same token: true
	// the writer again, beside a reader: true
}
