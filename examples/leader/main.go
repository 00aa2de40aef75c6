// Leader settles accounts in one of its replicas, the leader, which the others can find.
//
//	DATABASE_URL=postgres://localhost/shop go run ./leader
//
// Of two replicas, one leads and the other one waits. When the leader gets a signal, it finishes its batch and
// resigns, and the other one leads at once. When the leader dies, the other one leads as soon as the lease has
// expired.
package main

import (
	"context"
	"errors"
	"log"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/migrations"
	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/leader"
)

const election = "settlement"

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
	log.Print("ready: campaigns")
	return settle(ctx, client, time.Second, func(_ context.Context, l *pglock.Lease) error {
		log.Printf("settles a batch, with token %d", l.Token()) // in a database: in a transaction that l guards
		return nil
	})
}

// settle runs a batch at each interval while this replica leads, until ctx ends, and then returns nil. The
// context of a batch ends when the leadership is lost. The end of ctx does not interrupt the batch, so a batch
// must be shorter than the grace period of the platform.
func settle(ctx context.Context, client *pglock.Client, every time.Duration, batch func(context.Context, *pglock.Lease) error) error {
	address, _ := os.Hostname() // for those that look for the leader
	err := leader.Run(ctx, client, election, func(ctx context.Context, t *leader.Term) error {
		ticks := time.NewTicker(every)
		defer ticks.Stop()
		for {
			if err := batch(t.Lease().Context(), t.Lease()); err != nil && t.Lease().Err() == nil {
				log.Printf("leads on after a failed batch: %v", err)
			}
			// If a tick is ready too, one more batch may run. That is safe, because it ends with the lease.
			select {
			case <-ctx.Done(): // a signal, a lost lease, or a request to resign: Run resigns if need be
				return nil
			case <-ticks.C:
			}
		}
	}, leader.WithPayload(address))
	if !errors.Is(err, context.Canceled) {
		return err
	}
	return nil // the signal
}
