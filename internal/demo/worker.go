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
	Rounds                     int // deposits without a lock; with it a worker continues until the order finish
}

// place is a point in a deposit, and the order to stay there once.
type place string

const (
	beforeWrite   place = "before the write"
	inTransaction place = "in the transaction" // after the guard, if there is one
)

// The orders of the parent, as lines of the standard input, beside the places.
const begin, resume, finish = "begin", "resume", "finish"

// event is a line of JSON, with which a worker reports to its parent.
type event struct {
	Worker, Kind string
	Token        int64     // of the lease, 0 without one
	Balance      int64     // read (holding) or written
	At           time.Time // of granted: by the server's clock
	Refusals     []refusal // of refused
}

// The kinds of events. A worker that was held reports wrote or refused.
const ready, granted, holding, deposited, wrote, refused = "ready", "granted", "holding", "deposited", "wrote", "refused"

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
	orders <-chan string
	stayAt place // an order that was not yet carried out
	end    bool  // after the current deposit
	out    *json.Encoder
	pool   *pgxpool.Pool
	client *pglock.Client // nil without the lock
	held   bool           // in the current deposit
}

// ordersFrom returns the lines that the parent writes. Its end ends the worker.
func ordersFrom(parent io.Reader) <-chan string {
	orders := make(chan string)
	go func() {
		for lines := bufio.NewScanner(parent); lines.Scan(); {
			orders <- lines.Text()
		}
		os.Exit(exitFailed)
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
	err = w.report(event{Kind: ready})
	for order := ""; order != begin; order = <-w.orders {
	}
	for i := 0; err == nil && !w.end && (w.Locked || i < w.Rounds); i++ {
		if !w.Locked {
			err = w.deposit(ctx, nil)
			continue
		}
		err = w.useLease(ctx)
		w.rest(between(40, 120)) // leave the lock to others
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
	info, err := w.client.Get(ctx, lockName)
	if err == nil && info.Token == lease.Token() { // with the server's time of the grant
		err = w.report(event{Kind: granted, Token: int64(lease.Token()), At: info.AcquiredAt})
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
	err := w.pool.QueryRow(ctx, "SELECT balance FROM ledger WHERE account = $1", w.Account).Scan(&balance)
	if err != nil {
		return err
	}
	w.rest(between(4, 8))
	if lease != nil && lease.Err() != nil {
		return lease.Err()
	}
	// Between this check and the write no program checks its lock again. A pause may come here as
	// well as anywhere else, and this is where the demo makes one.
	if err := w.stay(beforeWrite, lease, balance); err != nil {
		return err
	}
	tx, err := w.pool.Begin(ctx)
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
	if err := w.stay(inTransaction, lease, read); err != nil {
		return err
	}
	e := event{Kind: deposited, Balance: read + 1}
	if lease != nil {
		e.Token = int64(lease.Token())
	}
	// The balance's row stays locked until the commit, so entries are numbered in the order of the
	// writes.
	var batch pgx.Batch
	batch.Queue("UPDATE ledger SET balance = $2 WHERE account = $1", w.Account, read+1)
	batch.Queue("INSERT INTO entries (account, worker, token) VALUES ($1, $2, $3)", w.Account, w.Name, e.Token)
	err := tx.SendBatch(ctx, &batch).Close()
	if err != nil && w.Guarded && tx.Conn().IsClosed() {
		return w.refuse(lease, refusal{byServer, err.Error()})
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
	return w.report(e)
}

// refusedByGuard reports the guard's error. If that came from the holder's own clock, it lets the
// server compare the token too, as if the pause had come after the check of the clock.
func (w *worker) refusedByGuard(ctx context.Context, tx pgx.Tx, lease *pglock.Lease, err error) error {
	var all []refusal
	if errors.Is(err, pglock.ErrLost) {
		all = append(all, refusal{byLease, err.Error()})
		err = fencing.Check(ctx, tx, lease.Fence())
	}
	if !errors.Is(err, fencing.ErrStale) {
		return errors.Join(err, w.refuse(lease, all...))
	}
	return w.refuse(lease, append(all, refusal{byFence, err.Error()})...)
}

func (w *worker) refuse(lease *pglock.Lease, why ...refusal) error {
	return errors.Join(errRefused, w.report(event{Kind: refused, Token: int64(lease.Token()), Refusals: why}))
}

// stay carries out an order to stay here, if there is one, and waits for the order to resume.
func (w *worker) stay(here place, lease *pglock.Lease, read int64) error {
	if lease == nil || w.stayAt != here {
		return nil
	}
	w.stayAt, w.held = "", true
	err := w.report(event{Kind: holding, Token: int64(lease.Token()), Balance: read})
	for order := ""; order != resume; order = <-w.orders {
	}
	return err
}

func (w *worker) report(e event) error {
	e.Worker = w.Name
	return w.out.Encode(e)
}

// rest takes orders for a time.
func (w *worker) rest(d time.Duration) {
	for over := time.After(d); ; {
		select { // if both are ready, the order is taken at the next rest
		case <-over:
			return
		case order := <-w.orders:
			w.end = w.end || order == finish
			if order == string(beforeWrite) || order == string(inTransaction) {
				w.stayAt = place(order)
			}
		}
	}
}

// between returns a random time of so many milliseconds.
func between(least, most int) time.Duration {
	return time.Duration(least+rand.N(most-least)) * time.Millisecond
}
