package main

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglock/pglock-go/fencing"
	"github.com/pglock/pglock-go/pglock"
)

// errRefused: the write was kept out. It has been reported.
var errRefused = errors.New("demo: the write was refused")

// deposit adds one coin, by reading the balance, thinking, and writing what was
// read plus one. With a lease it looks at that before it writes: when the lease
// has ended it returns why, and nothing was written.
func (w *worker) deposit(ctx context.Context, lease *pglock.Lease) error {
	balance, err := w.book.balance(ctx, w.job.Account)
	if err != nil {
		return err
	}
	pause(ctx, between(4*time.Millisecond, 8*time.Millisecond))
	if lease != nil && lease.Err() != nil {
		return lease.Err()
	}
	// From here to the write no program looks at its lock again. A pause may
	// come here as well as anywhere else, and this is where the demo makes one.
	if err := w.stay(beforeWrite, lease, balance); err != nil {
		return err
	}
	return w.write(ctx, lease, balance)
}

// write commits the deposit upon what was read. In a guarded act it returns
// errRefused if the guard, or the end that the server puts to a guarded
// transaction, kept the write out.
func (w *worker) write(ctx context.Context, lease *pglock.Lease, read int64) error {
	tx, err := w.book.pool.Begin(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback(ctx) }() // after the commit it does nothing
	if w.job.Guarded {
		if err := lease.Guard(ctx, tx); err != nil {
			return w.refusedByGuard(ctx, tx, lease, err)
		}
	}
	if err := w.stay(inTransaction, lease, read); err != nil {
		return err
	}
	var token int64
	if lease != nil {
		token = int64(lease.Token())
	}
	if err := w.book.deposit(ctx, tx, w.job.Account, w.job.Name, token, read+1); err != nil {
		if w.job.Guarded && tx.Conn().IsClosed() {
			return w.refuse(lease, refusal{byServer, err.Error()})
		}
		return err
	}
	if err := tx.Commit(ctx); err != nil {
		return err
	}
	return w.say(event{Kind: wrote, Token: token, Balance: read + 1})
}

// refusedByGuard reports what the guard said. If that was the word of the
// holder's own clock, it lets the server compare the token too, as if the pause
// had come after the look at the clock.
func (w *worker) refusedByGuard(ctx context.Context, tx pgx.Tx, lease *pglock.Lease, err error) error {
	var all []refusal
	if errors.Is(err, pglock.ErrLost) {
		all = append(all, refusal{byLease, err.Error()})
		err = fencing.Check(ctx, tx, lease.Fence())
	}
	if errors.Is(err, fencing.ErrStale) {
		return w.refuse(lease, append(all, refusal{byFence, err.Error()})...)
	}
	if err == nil { // nobody was granted the lock since: it could have been written
		return w.refuse(lease, all...)
	}
	return err
}

func (w *worker) refuse(lease *pglock.Lease, why ...refusal) error {
	if err := w.say(event{Kind: refused, Token: int64(lease.Token()), Refusals: why}); err != nil {
		return err
	}
	return errRefused
}

// stay reports and waits, if the worker is to be held here.
func (w *worker) stay(here place, lease *pglock.Lease, read int64) error {
	if lease == nil || !w.orders.holdsAt(here) {
		return nil
	}
	if err := w.say(event{Kind: holding, Token: int64(lease.Token()), Balance: read}); err != nil {
		return err
	}
	<-w.orders.resumed
	return nil
}
