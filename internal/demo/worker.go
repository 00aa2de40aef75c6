package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"time"

	"github.com/pglock/pglock-go/pglock"
)

const (
	// workerVariable makes this program a worker.
	workerVariable = "PGLOCK_DEMO_WORKER"

	lockName         = "ledger"
	depositsPerLease = 4
)

func isWorker() bool { return os.Getenv(workerVariable) != "" }

// worker is one of the processes that deposit.
type worker struct {
	job    assignment
	orders *orders
	report *json.Encoder
	book   *ledger
	client *pglock.Client // nil without the lock
}

// work is main for a worker. It returns the exit status.
func work(in io.Reader, out io.Writer) int {
	w := &worker{report: json.NewEncoder(out)}
	err := w.run(in)
	if err != nil {
		_ = w.say(event{Kind: failed, Error: err.Error()}) // the status says it too
		return exitFailed
	}
	return 0
}

func (w *worker) run(in io.Reader) error {
	lines := bufio.NewReader(in)
	line, err := lines.ReadBytes('\n')
	if err != nil {
		return fmt.Errorf("no assignment: %w", err)
	}
	if err := json.Unmarshal(line, &w.job); err != nil {
		return fmt.Errorf("assignment: %w", err)
	}
	ctx := context.Background()
	if w.book, err = openLedger(ctx, w.job.URL, w.job.Schema, w.job.Name); err != nil {
		return err
	}
	defer w.book.pool.Close()
	if w.job.Locked {
		w.client, err = pglock.Open(ctx, w.book.pool,
			pglock.WithSchema(w.job.Schema), pglock.WithTTL(w.job.TTL), pglock.WithHolder(w.job.Name))
		if err != nil {
			return err
		}
		defer func() { _ = w.client.Close(ctx) }() // nothing is held any more
	}
	w.orders = newOrders()
	go w.orders.listen(lines)
	if err := w.say(event{Kind: ready}); err != nil {
		return err
	}
	<-w.orders.begun
	if w.job.Locked {
		return w.takeTurns(ctx)
	}
	return w.depositAll(ctx)
}

// depositAll makes all deposits without a lock.
func (w *worker) depositAll(ctx context.Context) error {
	for range w.job.Rounds {
		if err := w.deposit(ctx, nil); err != nil {
			return err
		}
	}
	return nil
}

// takeTurns deposits under the lock until told to finish.
func (w *worker) takeTurns(ctx context.Context) error {
	for {
		lease, err := w.client.Acquire(w.orders.finished, lockName)
		if w.orders.finished.Err() != nil && errors.Is(err, context.Canceled) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := w.takeTurn(ctx, lease); err != nil {
			return err
		}
		pause(w.orders.finished, between(40*time.Millisecond, 120*time.Millisecond)) // somebody else's turn
	}
}

// takeTurn makes a few deposits and releases the lease. A lease that was lost
// meanwhile is reported and no error: the worker queues again.
func (w *worker) takeTurn(ctx context.Context, lease *pglock.Lease) error {
	err := w.announce(ctx, lease)
	for i := 0; err == nil && i < depositsPerLease && w.orders.finished.Err() == nil; i++ {
		err = w.deposit(ctx, lease)
	}
	released := lease.Release(ctx)
	switch {
	case errors.Is(err, errRefused):
		return nil
	case err != nil && !errors.Is(err, pglock.ErrLost):
		return err
	case errors.Is(released, pglock.ErrLost):
		return w.say(event{Kind: lost, Token: int64(lease.Token()), Error: released.Error()})
	}
	return released
}

// announce reports the grant, with the server's time of it.
func (w *worker) announce(ctx context.Context, lease *pglock.Lease) error {
	lock, err := w.client.Get(ctx, lockName)
	if err != nil {
		return err
	}
	if lock.Token != lease.Token() {
		return nil // not ours any more, as the deposits will find
	}
	return w.say(event{Kind: granted, Token: int64(lease.Token()), At: lock.AcquiredAt})
}

func (w *worker) say(e event) error { return w.report.Encode(e) }

func between(least, most time.Duration) time.Duration { return least + rand.N(most-least) }

// pause returns after d, or when ctx is done.
func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
