package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglock/pglock-go/fencing"
	"github.com/pglock/pglock-go/pglock"
)

const (
	workerVariable   = "PGLOCK_DEMO_WORKER" // makes this program a worker; an assignment as JSON
	lockName         = "ledger"
	depositsPerLease = 4
)

// assignment is what a worker is started with.
type assignment struct {
	Name, URL, Schema, Account string
	Locked, Guarded            bool
	TTL                        time.Duration
	Rounds                     int // deposits without a lock; with it a worker goes on until the order finish
}

// place is a point in a deposit.
type place string

const (
	beforeWrite   place = "before the write"
	inTransaction place = "in the transaction" // after the guard, if there is one
)

// refusal is why a write was refused.
type refusal struct {
	By    refuser
	Error string
}

type refuser string

const (
	byLease  refuser = "its own clock"                               // pglock.ErrLost
	byFence  refuser = "the server, asked with the token alone"      // fencing.ErrStale
	byServer refuser = "the server, which had ended the transaction" // of a paused holder
)

// errRefused means that the write was refused. The worker has reported it.
var errRefused = errors.New("demo: the write was refused")

// worker is one of the processes that deposit.
type worker struct {
	assignment
	book   *ledger
	client *pglock.Client // nil without the lock
	held   bool           // in the current deposit
}

// work is main for a worker. It returns the exit status. The end of the parent ends the worker.
func work(text string, in io.Reader, errs io.Writer) int {
	if in != nil {
		go func() {
			_, _ = io.Copy(io.Discard, in)
			os.Exit(exitFailed)
		}()
	}
	var w worker
	err := json.Unmarshal([]byte(text), &w.assignment)
	if err == nil {
		err = w.run(context.Background())
	}
	if err != nil {
		fmt.Fprintln(errs, err)
		return exitFailed
	}
	return 0
}

func (w *worker) run(ctx context.Context) (err error) {
	if w.book, err = openLedger(ctx, w.URL, w.Schema, w.Name); err != nil {
		return err
	}
	defer w.book.pool.Close()
	if w.Locked {
		w.client, err = pglock.Open(ctx, w.book.pool, pglock.WithSchema(w.Schema), pglock.WithTTL(w.TTL), pglock.WithHolder(w.Name))
		if err != nil {
			return err
		}
		defer func() { _ = w.client.Close(ctx) }() // nothing is held any more
	}
	if err := w.report(ctx, event{Kind: ready}); err != nil {
		return err
	}
	if err := w.await(ctx, begin, 0); err != nil {
		return err
	}
	for range w.Rounds {
		if w.Locked {
			break
		}
		if err := w.deposit(ctx, nil); err != nil {
			return err
		}
	}
	for w.Locked && err == nil {
		var finished bool
		if finished, err = w.told(ctx, finish, 0); finished {
			break
		}
		if err == nil {
			err = w.useLease(ctx)
		}
		pause(ctx, between(40*time.Millisecond, 120*time.Millisecond)) // leave the lock to others
	}
	return err
}

// useLease acquires the lock, makes a few deposits and releases. A lost lease is no error: the worker
// acquires again.
func (w *worker) useLease(ctx context.Context) error {
	lease, err := w.client.Acquire(ctx, lockName)
	if err != nil {
		return err
	}
	info, err := w.client.Get(ctx, lockName)
	if err == nil && info.Token == lease.Token() { // with the server's time of the grant
		err = w.report(ctx, event{Kind: granted, Token: int64(lease.Token()), At: info.AcquiredAt})
	}
	for i := 0; err == nil && i < depositsPerLease; i++ {
		err = w.deposit(ctx, lease)
	}
	err = errors.Join(err, lease.Release(ctx))
	if errors.Is(err, errRefused) || errors.Is(err, pglock.ErrLost) {
		return nil
	}
	return err
}

// deposit adds one coin: it reads the balance, thinks, and writes what it read plus one. With a lease
// it checks the lease before the write, and returns the lease's error without writing if that has
// ended.
func (w *worker) deposit(ctx context.Context, lease *pglock.Lease) error {
	w.held = false
	var balance int64
	err := w.book.pool.QueryRow(ctx, "SELECT balance FROM ledger WHERE account = $1", w.Account).Scan(&balance)
	if err != nil {
		return err
	}
	pause(ctx, between(4*time.Millisecond, 8*time.Millisecond))
	if lease != nil && lease.Err() != nil {
		return lease.Err()
	}
	// Between this check and the write no program checks its lock again. A pause may come here as
	// well as anywhere else, and this is where the demo makes one.
	if err := w.stay(ctx, beforeWrite, lease, balance); err != nil {
		return err
	}
	tx, err := w.book.pool.Begin(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback(ctx) }() // after the commit it does nothing
	return w.write(ctx, tx, lease, balance)
}

// write commits the deposit. In a guarded act it returns errRefused if the guard refused the write,
// or if the server had ended the guarded transaction.
func (w *worker) write(ctx context.Context, tx pgx.Tx, lease *pglock.Lease, read int64) error {
	if w.Guarded {
		if err := lease.Guard(ctx, tx); err != nil {
			return w.refusedByGuard(ctx, tx, lease, err)
		}
	}
	if err := w.stay(ctx, inTransaction, lease, read); err != nil {
		return err
	}
	var token int64
	if lease != nil {
		token = int64(lease.Token())
	}
	// The balance's row stays locked until the commit, so entries are numbered in the order of the
	// writes.
	var batch pgx.Batch
	batch.Queue("UPDATE ledger SET balance = $2 WHERE account = $1", w.Account, read+1)
	batch.Queue("INSERT INTO entries (account, worker, token) VALUES ($1, $2, $3)", w.Account, w.Name, token)
	err := tx.SendBatch(ctx, &batch).Close()
	if err != nil && w.Guarded && tx.Conn().IsClosed() {
		return w.refuse(ctx, lease, refusal{byServer, err.Error()})
	}
	if err == nil {
		err = tx.Commit(ctx)
	}
	if err != nil || !w.held {
		return err
	}
	return w.report(ctx, event{Kind: wrote, Token: token, Balance: read + 1})
}

// refusedByGuard reports the guard's error. If that came from the holder's own clock, it lets the
// server compare the token too, as if the pause had come after the check of the clock.
func (w *worker) refusedByGuard(ctx context.Context, tx pgx.Tx, lease *pglock.Lease, err error) error {
	var all []refusal
	if errors.Is(err, pglock.ErrLost) {
		all = append(all, refusal{byLease, err.Error()})
		err = fencing.Check(ctx, tx, lease.Fence())
	}
	if errors.Is(err, fencing.ErrStale) {
		all, err = append(all, refusal{byFence, err.Error()}), nil
	}
	if err != nil {
		return err
	}
	return w.refuse(ctx, lease, all...)
}

func (w *worker) refuse(ctx context.Context, lease *pglock.Lease, why ...refusal) error {
	text, err := json.Marshal(why)
	if err == nil {
		err = w.report(ctx, event{Kind: refused, Token: int64(lease.Token()), Text: string(text)})
	}
	return errors.Join(errRefused, err)
}

// stay takes an order to hold here, if there is one, and waits for the order to resume.
func (w *worker) stay(ctx context.Context, here place, lease *pglock.Lease, read int64) error {
	if lease == nil {
		return nil
	}
	tag, err := w.book.pool.Exec(ctx, "UPDATE events SET kind = 'holding', worker = $3, token = $4, balance = $5 "+
		"WHERE account = $1 AND kind = 'hold' AND text = $2", w.Account, here, w.Name, int64(lease.Token()), read)
	if err != nil || tag.RowsAffected() == 0 {
		return err
	}
	w.held = true
	return w.await(ctx, resume, int64(lease.Token()))
}

func (w *worker) report(ctx context.Context, e event) error {
	e.Worker = w.Name
	return w.book.write(ctx, w.Account, e)
}

// told reports whether the parent has given an order.
func (w *worker) told(ctx context.Context, kind string, token int64) (bool, error) {
	_, found, err := w.book.read(ctx, "kind = $2 AND token = $3", w.Account, kind, token)
	return found, err
}

// await waits for an order of the parent.
func (w *worker) await(ctx context.Context, kind string, token int64) error {
	for {
		if found, err := w.told(ctx, kind, token); found || err != nil {
			return err
		}
		pause(ctx, 5*time.Millisecond)
	}
}

func between(least, most time.Duration) time.Duration { return least + rand.N(most-least) }

// pause returns after d, or when ctx is done.
func pause(ctx context.Context, d time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	<-ctx.Done()
}
