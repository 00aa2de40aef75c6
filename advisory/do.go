package advisory

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglock/pglock-go/internal/await"
)

// DB is what Do begins a transaction on: a *pgxpool.Pool, *pgxpool.Conn or *pgx.Conn.
type DB interface {
	BeginTx(ctx context.Context, options pgx.TxOptions) (pgx.Tx, error)
	SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults
}

// Do runs fn in a transaction that holds the key's lock, and commits it: the lock is free
// when the transaction is over. It takes two round trips around fn: BEGIN and the lock go
// together, then COMMIT.
//
// On success fn returned nil and the transaction is committed. Otherwise it is rolled
// back, also when fn panics, and the error is fn's own; or a *NotAcquiredError (errors.Is
// ErrNotAcquired) when the lock was not granted, in which case fn did not run; or
// ErrPoolExhausted; or the commit's. When the answer to the commit was lost it wraps ErrCommitUnknown.
// A ctx that ends before the commit is sent rolls back; its error is in the error then.
//
// ctx bounds all of it, WithTimeout the wait for the lock, WithPoolWait the wait for a
// connection. Of the goroutines that want the same key from the same pool, two at a time
// use a connection; the others wait without one, in the order in which they came.
//
// A Do inside fn is another transaction on another connection: the server sees no deadlock
// between the two, and the pool may run out. Use WithKeys, or Lock on fn's transaction.
//
// fn must not end the transaction. What it reads is what the lock's last holder committed, or
// newer, at every isolation level.
func Do(ctx context.Context, db DB, key Key, fn func(ctx context.Context, tx pgx.Tx) error, opts ...DoOption) error {
	cfg := doConfig{poolWait: defaultPoolWait}
	for _, o := range opts {
		if err := o.applyDo(&cfg); err != nil {
			return err
		}
	}
	c, err := newCall(append([]Key{key}, cfg.also...), false, cfg.lock)
	switch {
	case err != nil:
		return err
	case fn == nil:
		return invalidOption("the function is nil")
	case db == nil, reflect.ValueOf(db).Kind() == reflect.Pointer && reflect.ValueOf(db).IsNil():
		return invalidOption("the database is nil")
	}
	if reflect.TypeOf(db).Comparable() { // as pointers are
		leave, err := c.join(ctx, &doLines, place{db, c.keys[0]}, width)
		if err != nil {
			return err
		}
		defer leave()
	}
	w := work{call: c, cfg: cfg, db: db, fn: fn}
	return w.repeat(ctx)
}

// doLines are those of Do.
var doLines lines

// work is one call of Do.
type work struct {
	*call
	cfg doConfig
	db  DB
	fn  func(ctx context.Context, tx pgx.Tx) error
}

// repeat runs the transaction, again where that is asked for and can help.
func (w *work) repeat(ctx context.Context) error {
	var pause pauses
	for failed := 0; ; failed++ {
		err := w.run(ctx)
		if state := sqlState(err); failed >= w.cfg.retries || state != serializationFailure && state != deadlockDetected {
			return err
		}
		next := time.NewTimer(pause.next())
		select {
		case <-next.C:
		case <-ctx.Done():
			next.Stop()
			return errors.Join(err, await.Ended(ctx))
		}
		w.begun, w.notCounted = time.Now(), 0
	}
}

// run is one transaction.
func (w *work) run(ctx context.Context) error {
	if !w.call.cfg.polling {
		return w.once(ctx, w.lockFirst)
	}
	return w.poll(ctx, func() error { return w.once(ctx, w.tryFirst) }) // a connection is used for each try, and none between them
}

// once is one transaction, if it gets the lock.
func (w *work) once(ctx context.Context, how func(context.Context, *beginning) error) error {
	b, err := w.connect(ctx)
	if err != nil {
		return err
	}
	defer b.release()
	if err := how(ctx, b); err != nil {
		return err
	}
	return w.finish(ctx, b.tx)
}

// finish runs the function and ends the transaction.
func (w *work) finish(ctx context.Context, tx pgx.Tx) (err error) {
	committed := false
	defer func() { // not by recover: a panic keeps its stack
		if !committed {
			err = errors.Join(err, rollBack(ctx, tx))
		}
	}()
	if err := w.fn(ctx, tx); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return fmt.Errorf("advisory: rolled back: %w", await.Ended(ctx))
	}
	committed = true
	return commit(ctx, tx)
}
