package rowlock_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"sync"
	"sync/atomic"

	"github.com/jackc/pgx/v5"

	"github.com/pglock/pglock-go/pglock/rowlock"
)

// Five buyers order the same two items at the same time, in different orders. There are pears for
// two of them. Nobody waits in a cycle, and nothing is sold twice.
func ExampleReserve_fiveBuyers() {
	ctx := context.Background()
	pool, end := shop() // 5 apples, 2 pears
	defer end()

	var bought, missed atomic.Int32
	var buyers sync.WaitGroup
	for buyer := range 5 {
		order := rowlock.Lines(rowlock.Take("apple", 1), rowlock.Take("pear", 1))
		if buyer%2 == 1 {
			order = rowlock.Lines(rowlock.Take("pear", 1), rowlock.Take("apple", 1))
		}
		buyers.Go(func() {
			err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
				_, err := rowlock.Reserve(ctx, tx, stock, order)
				return err // here the order would be written in tx
			})
			var short *rowlock.ShortError
			switch {
			case err == nil:
				bought.Add(1)
			case errors.As(err, &short):
				missed.Add(1)
			default:
				log.Print(err)
			}
		})
	}
	buyers.Wait()

	var apples, pears int
	err := pool.QueryRow(ctx, "SELECT sum(qty) FILTER (WHERE sku = 'apple'), sum(qty) FILTER (WHERE sku = 'pear') FROM stock").Scan(&apples, &pears)
	if err != nil {
		log.Panic(err)
	}
	fmt.Println("bought:", bought.Load(), "missed:", missed.Load(), "left:", apples, "apples,", pears, "pears")
	// Output: bought: 2 missed: 3 left: 3 apples, 0 pears
}
