package limits

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglock/pglock-go/internal/locktest"
	"github.com/pglock/pglock-go/pglock"
)

// operation is a piece of work with locks that ends without holding any.
type operation struct {
	name   string
	weight int // how often it is chosen
	run    func(c *churn, ctx context.Context, client *pglock.Client) error
}

var operations = []operation{
	{"lease", 8, func(_ *churn, ctx context.Context, client *pglock.Client) error {
		return release(ctx)(client.Acquire(ctx, oneOf("lease", 20)))
	}},
	{"guarded transaction", 4, (*churn).guard},
	{"new name", 8, func(_ *churn, ctx context.Context, client *pglock.Client) error {
		return release(ctx)(client.TryAcquire(ctx, "new "+rand.Text()))
	}},
	{"names pruned", 1, func(_ *churn, ctx context.Context, client *pglock.Client) error {
		_, err := client.Prune(ctx, 100*time.Millisecond)
		return err
	}},
	{"semaphore", 8, func(_ *churn, ctx context.Context, client *pglock.Client) error {
		return release(ctx)(client.Semaphore(oneOf("semaphore", 4), 3).Weight(1 + mathrand.N(3)).Acquire(ctx))
	}},
	{"reader", 6, func(_ *churn, ctx context.Context, client *pglock.Client) error {
		return release(ctx)(client.Reader(oneOf("rw", 3)).Acquire(ctx))
	}},
	{"writer", 3, (*churn).write},
	{"several names", 4, func(_ *churn, ctx context.Context, client *pglock.Client) error {
		return release(ctx)(locktest.All(client, oneOf("left", 5), oneOf("middle", 5), oneOf("right", 5)).Acquire(ctx))
	}},
	{"DoTx", 2, func(_ *churn, ctx context.Context, client *pglock.Client) error {
		return client.DoTx(ctx, oneOf("tx", 5), func(context.Context, pgx.Tx) error { return nil })
	}},
	{"busy holder", 3, func(_ *churn, ctx context.Context, client *pglock.Client) error {
		l, err := client.Acquire(ctx, oneOf("hot", 3))
		if err != nil {
			return err
		}
		rest(10 * time.Millisecond)
		return l.Release(ctx)
	}},
	{"waiter that gives up", 8, func(_ *churn, ctx context.Context, client *pglock.Client) error {
		return release(ctx)(client.Acquire(ctx, oneOf("hot", 3), pglock.WithWait(mathrand.N(10*time.Millisecond))))
	}},
	{"canceled context", 8, (*churn).cancel},
	{"client that opens and closes", 2, (*churn).reopen},
	{"renewed lease", 1, func(_ *churn, ctx context.Context, client *pglock.Client) error {
		l, err := client.Acquire(ctx, oneOf("renewed", 20), pglock.WithTTL(300*time.Millisecond))
		if err != nil {
			return err
		}
		rest(120 * time.Millisecond) // more than a third of the TTL
		return l.Release(ctx)
	}},
	{"lost lease", 1, func(_ *churn, ctx context.Context, client *pglock.Client) error {
		l, err := client.Acquire(ctx, oneOf("lost", 20), pglock.WithTTL(50*time.Millisecond), pglock.WithRenewEvery(0))
		if err != nil {
			return err
		}
		<-l.Done()
		return nil
	}},
	{"revoked lease", 1, func(c *churn, ctx context.Context, client *pglock.Client) error {
		l, err := client.Acquire(ctx, oneOf("revoked", 20))
		if err != nil {
			return err
		}
		err = c.clients[0].Revoke(ctx, l.Name(), l.Token(), "churn")
		return errors.Join(err, l.Release(ctx))
	}},
	{"watcher", 2, func(_ *churn, ctx context.Context, client *pglock.Client) error {
		for _, err := range client.Watch(ctx, oneOf("hot", 3)) {
			return err
		}
		return nil
	}},
}

// guard commits a guarded transaction.
func (c *churn) guard(ctx context.Context, client *pglock.Client) error {
	l, err := client.Acquire(ctx, oneOf("lease", 20))
	if err != nil {
		return err
	}
	tx, err := c.pool.Begin(ctx)
	if err == nil {
		if err = l.Guard(ctx, tx); err == nil {
			err = tx.Commit(ctx)
		}
		_ = tx.Rollback(ctx) // does nothing after a commit
	}
	return errors.Join(err, l.Release(ctx))
}

// write holds a readers-writer lock, at first as the writer and then as a reader.
func (c *churn) write(ctx context.Context, client *pglock.Client) error {
	w, err := client.Writer(oneOf("rw", 3)).Acquire(ctx)
	if err != nil {
		return err
	}
	return errors.Join(w.Downgrade(ctx), w.Release(ctx))
}

// cancel acquires a lock of some kind with a context that ends at some moment.
func (c *churn) cancel(ctx context.Context, client *pglock.Client) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if after := mathrand.N(6*time.Millisecond) - time.Millisecond; after < 0 {
		cancel()
	} else {
		defer time.AfterFunc(after, cancel).Stop()
	}
	kept := context.WithoutCancel(ctx)
	switch mathrand.N(4) {
	case 0:
		return release(kept)(client.Semaphore(oneOf("semaphore", 4), 3).Weight(3).Acquire(ctx))
	case 1:
		return release(kept)(client.Writer(oneOf("rw", 3)).Acquire(ctx))
	case 2:
		return release(kept)(locktest.All(client, oneOf("left", 5), oneOf("hot", 3)).Acquire(ctx))
	default:
		return release(kept)(client.Acquire(ctx, oneOf("hot", 3)))
	}
}

// reopen opens a client, whose Close releases what it holds and ends a call that waits.
func (c *churn) reopen(ctx context.Context, _ *pglock.Client) error {
	client, err := pglock.Open(ctx, c.pool, pglock.WithLogger(nil))
	if err != nil {
		return err
	}
	_, err = client.TryAcquire(ctx, "new "+rand.Text())
	waited := make(chan error, 1)
	go func() { waited <- release(ctx)(client.Acquire(ctx, oneOf("hot", 3))) }()
	rest(mathrand.N(5 * time.Millisecond))
	err = errors.Join(err, client.Close(ctx))
	if waiter := <-waited; !errors.Is(waiter, pglock.ErrClosed) {
		err = errors.Join(err, waiter)
	}
	return err
}

// worker runs operations until ctx is done.
func (c *churn) worker(ctx context.Context, i int) {
	var deck []operation
	for _, o := range operations {
		deck = append(deck, slices.Repeat([]operation{o}, o.weight)...)
	}
	client := c.clients[i%len(c.clients)]
	for ctx.Err() == nil {
		if c.pace != nil {
			select {
			case <-c.pace:
			case <-ctx.Done(): // both may be ready: the loop ends after this operation
			}
		}
		o := deck[mathrand.N(len(deck))]
		c.work.RLock()
		if c.leaky {
			if o.name == "names pruned" {
				o.run = func(*churn, context.Context, *pglock.Client) error { return nil }
			}
			if err := c.leaked.leak(ctx, c, client); err != nil {
				c.t.Error(err)
			}
		}
		err := o.run(c, context.WithoutCancel(ctx), client) // to its end, so that it holds nothing
		c.work.RUnlock()
		if err != nil && !tolerated(err) {
			c.t.Errorf("%s: %v", o.name, err)
			return
		}
		c.operations.Add(1)
	}
}

// tolerated reports whether err is what an operation is for, or what a laden machine does.
func tolerated(err error) bool {
	return errors.Is(err, pglock.ErrNotAcquired) || errors.Is(err, context.Canceled) || errors.Is(err, pglock.ErrLost)
}

// release returns a function that releases the lease which an acquire has returned.
func release(ctx context.Context) func(*pglock.Lease, error) error {
	return func(l *pglock.Lease, err error) error {
		if err != nil {
			return err
		}
		return l.Release(ctx)
	}
}

// oneOf returns one of n names.
func oneOf(name string, n int) string { return fmt.Sprint(name, " ", mathrand.N(n)) }

// rest waits for d.
func rest(d time.Duration) { <-time.After(d) }
