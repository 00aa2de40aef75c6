package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

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
}

// The parent's orders are lines of the standard input. A place is the order to stay, once, at that point
// of a deposit, where inTransaction comes after the guard, if there is one. At the end of the input the
// worker ends after its current deposit, so it also ends when its parent was killed.
const resume, beforeWrite, inTransaction = "resume", "before the write", "in the transaction"

// event is a line of JSON, with which a worker reports to its parent.
type event struct {
	Worker, Kind string
	Token        int64    // of the lease, 0 without one
	Balance      int64    // read (holding) or written
	Reasons      []string // of refused: each begins with the refuser; of exited: why, after a failure
}

// The kinds of events. A worker that was held reports wrote or refused. The parent adds exited.
const (
	granted, holding          = "granted", "holding"
	deposited, wrote, refused = "deposited", "wrote", "refused"
	exited                    = "exited"
)

// The refusers of a write.
const (
	byLease  = "its own clock: "                               // pglock.ErrLost
	byFence  = "the server, asked with the token alone: "      // fencing.ErrStale
	byServer = "the server, which had ended the transaction: " // of a paused holder
)

// worker is one of the processes that deposit.
type worker struct {
	assignment
	orders <-chan string
	stayAt string // an order that was not yet carried out
	end    bool   // after the current deposit
	out    *json.Encoder
	pool   *pgxpool.Pool
	client *pglock.Client // nil without the lock
	held   bool           // in the current deposit
}

// ordersFrom returns the lines that the parent writes, and closes the channel at their end.
func ordersFrom(parent io.Reader) <-chan string {
	orders := make(chan string)
	go func() {
		defer close(orders)
		for lines := bufio.NewScanner(parent); lines.Scan(); {
			orders <- lines.Text()
		}
	}()
	return orders
}

// work is main for a worker. It returns the exit status.
func work(text string, orders <-chan string, out, errs io.Writer) int {
	w := worker{orders: orders, out: json.NewEncoder(out)}
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
	if w.pool, err = connect(ctx, w.URL, w.Schema, w.Name); err != nil {
		return err
	}
	defer w.pool.Close()
	if w.Locked {
		w.client, err = pglock.Open(ctx, w.pool, pglock.WithSchema(w.Schema), pglock.WithTTL(w.TTL), pglock.WithHolder(w.Name))
		if err != nil {
			return err
		}
		defer func() { _ = w.client.Close(ctx) }() // nothing is held any more
	}
	for err == nil && !w.end {
		if !w.Locked {
			err = w.deposit(ctx, nil)
			continue
		}
		err = w.useLease(ctx)
		w.rest(40, 120) // leave the lock to others
	}
	return err
}

// useLease acquires the lock, makes a few deposits and releases. A lost lease is no error, because the
// worker acquires again.
func (w *worker) useLease(ctx context.Context) error {
	lease, err := w.client.Acquire(ctx, lockName)
	if err != nil {
		return err
	}
	w.report(event{Kind: granted, Token: int64(lease.Token())})
	for i := 0; err == nil && i < depositsPerLease; i++ {
		err = w.deposit(ctx, lease)
	}
	err = errors.Join(err, lease.Release(ctx))
	if errors.Is(err, pglock.ErrLost) {
		return nil
	}
	return err
}

// deposit adds one coin: it reads the balance, thinks, and writes what it read plus one. With a lease
// it checks the lease before the write, and returns the lease's error without writing if that has
// ended. In a guarded act it returns ErrLost, too, if the guard refused the write, or if the server had
// ended the guarded transaction.
func (w *worker) deposit(ctx context.Context, lease *pglock.Lease) error {
	w.held = false
	e := event{Kind: deposited}
	if lease != nil {
		e.Token = int64(lease.Token())
	}
	err := w.pool.QueryRow(ctx, "SELECT balance FROM ledger WHERE account = $1", w.Account).Scan(&e.Balance)
	if err != nil {
		return err
	}
	w.rest(4, 8)
	if lease != nil && lease.Err() != nil {
		return lease.Err()
	}
	// Between this check and the write no program checks its lock again. A pause may come here as
	// well as anywhere else, and this is where the demo makes one.
	w.stay(beforeWrite, e)
	tx, err := w.pool.Begin(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback(ctx) }() // after the commit it does nothing
	if w.Guarded {
		if err := lease.Guard(ctx, tx); err != nil {
			return w.refusedByGuard(ctx, tx, lease, err)
		}
	}
	w.stay(inTransaction, e)
	// The balance's row stays locked until the commit, so entries are numbered in the order of the
	// writes.
	e.Balance++
	var batch pgx.Batch
	batch.Queue("UPDATE ledger SET balance = $2 WHERE account = $1", w.Account, e.Balance)
	batch.Queue("INSERT INTO entries (account, worker, token) VALUES ($1, $2, $3)", w.Account, w.Name, e.Token)
	err = tx.SendBatch(ctx, &batch).Close()
	if err != nil && w.Guarded && tx.Conn().IsClosed() {
		return w.refuse(lease, byServer+err.Error())
	}
	if err == nil {
		err = tx.Commit(ctx)
	}
	if err != nil {
		return err
	}
	if w.held {
		e.Kind = wrote
	}
	w.report(e)
	return nil
}

// refusedByGuard reports the guard's error. If that came from the holder's own clock, it lets the
// server compare the token too, as if the pause had come after the check of the clock.
func (w *worker) refusedByGuard(ctx context.Context, tx pgx.Tx, lease *pglock.Lease, err error) error {
	var reasons []string
	if errors.Is(err, pglock.ErrLost) {
		reasons = append(reasons, byLease+err.Error())
		err = fencing.Check(ctx, tx, lease.Fence())
	}
	if !errors.Is(err, fencing.ErrStale) {
		return fmt.Errorf("no refusal of a stale grant, but: %w", err)
	}
	return w.refuse(lease, append(reasons, byFence+err.Error())...)
}

func (w *worker) refuse(lease *pglock.Lease, reasons ...string) error {
	w.report(event{Kind: refused, Token: int64(lease.Token()), Reasons: reasons})
	return pglock.ErrLost
}

// stay carries out an order to stay here, if there is one, and waits for the order to resume.
func (w *worker) stay(here string, e event) {
	if w.stayAt != here || w.end {
		return
	}
	w.stayAt, w.held = "", true
	e.Kind = holding
	w.report(e)
	<-w.orders // resume
}

// report ignores an error, because a worker without its parent ends soon.
func (w *worker) report(e event) { _ = w.out.Encode(e) }

// rest takes orders for a random time of so many milliseconds.
func (w *worker) rest(least, most int) {
	for over := time.After(time.Duration(least+rand.N(most-least)) * time.Millisecond); ; {
		select { // if both are ready, the order is taken at the next rest
		case <-over:
			return
		case order, more := <-w.orders:
			w.stayAt = order
			if !more {
				w.end, w.orders = true, nil // nil is never ready
			}
		}
	}
}
