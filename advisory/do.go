package advisory

import (
	"context"
	"database/sql"
	"errors"
	"reflect"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglock/pglock-go/internal/backoff"
	"github.com/pglock/pglock-go/internal/errs"
	"github.com/pglock/pglock-go/internal/pgtx"
)

// DB is what Do begins a transaction on: a *pgxpool.Pool, *pgxpool.Conn or *pgx.Conn.
type DB interface {
	BeginTx(ctx context.Context, options pgx.TxOptions) (pgx.Tx, error)
	SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults
}

// doAdmission admits two calls of Do for each key: the holder, and one that waits in the server,
// so that the next holder is granted the lock without a round trip.
var doAdmission = newAdmission()

// Do runs fn in a transaction that holds the key's lock, and commits it. The lock is released
// when the transaction ends. Do takes two round trips around fn: BEGIN together with the lock,
// and COMMIT.
//
// On success fn has returned nil and the transaction is committed. Otherwise the transaction is
// rolled back, also if fn panics. The error is fn's; or a *NotAcquiredError (errors.Is
// ErrNotAcquired) if the lock was not granted, and then fn did not run; or the commit's, which
// wraps ErrCommitUnknown if the answer to the commit was lost. If ctx is done before the commit
// is sent, the transaction is rolled back, and the error has ctx's error and cause.
//
// ctx bounds the whole call, WithTimeout the wait for the lock, and WithPoolWait the wait for a
// connection. Of the goroutines that want the same key from the same pool, two at a time use a
// connection; the others wait without one, first come, first served.
//
// A Do inside fn is another transaction on another connection: the server can't detect a deadlock
// between the two, and the pool may run out of connections. Use WithKeys, or Lock on fn's
// transaction.
//
// fn must not end the transaction. At every isolation level, it reads what the lock's last holder
// has committed, or newer. For a read-only transaction, begin fn with SET TRANSACTION READ ONLY.
func Do(ctx context.Context, db DB, key Key, fn func(ctx context.Context, tx pgx.Tx) error, opts ...DoOption) error {
	return do(ctx, db, key, fn, opts)
}

// DoDB is Do on a connection of a *sql.DB that runs on pgx's stdlib driver, also through a driver
// that wraps it. The connection counts for SetMaxOpenConns. fn's transaction is pgx's: for a
// *sql.Tx, begin one and call Lock with it, through package sqltx. On any other driver the error
// wraps ErrDriver, and nothing was sent.
func DoDB(ctx context.Context, db *sql.DB, key Key, fn func(ctx context.Context, tx pgx.Tx) error, opts ...DoOption) error {
	return do(ctx, db, key, fn, opts)
}

func do(ctx context.Context, db any, key Key, fn func(ctx context.Context, tx pgx.Tx) error, opts []DoOption) error {
	c, err := newCall([]Key{key}, false, opts)
	switch {
	case err != nil:
		return err
	case fn == nil:
		return errs.InvalidOption("advisory", "the function is nil")
	case pgtx.IsNil(db):
		return errs.InvalidOption("advisory", "the database is nil")
	}
	if reflect.TypeOf(db).Comparable() { // pointers are
		leave, err := c.enter(ctx, doAdmission, db, 2)
		if err != nil {
			return err
		}
		defer leave()
	}
	return (&doCall{call: c, db: db, fn: fn}).run(ctx)
}

// doCall is one call of Do.
type doCall struct {
	*call
	db any // a DB or a *sql.DB
	fn func(ctx context.Context, tx pgx.Tx) error

	exposed bool // the session may hold a lock that outlives the transaction
}

// run runs transactions until one succeeds or fails permanently.
func (d *doCall) run(ctx context.Context) error {
	pauses := backoff.Backoff{First: firstPause, Max: maxPause}
	for failed := 0; ; failed++ {
		err := d.runOnce(ctx)
		state := pgtx.SQLState(err)
		if failed >= d.cfg.retries || state != pgtx.SerializationFailure && state != pgtx.DeadlockDetected {
			return err
		}
		if pauses.Sleep(ctx) != nil {
			return errs.Join(err, errs.ContextErr(ctx))
		}
		d.begun, d.poolWaited = time.Now(), 0
	}
}

// runOnce runs one transaction that begins with the lock.
func (d *doCall) runOnce(ctx context.Context) error {
	db, release, err := d.connOf(ctx, d.db)
	if err != nil {
		return err
	}
	defer release()
	if conn := pgtx.Conn(db); conn != nil && conn.PgConn().TxStatus() != 'I' && !conn.IsClosed() {
		return errs.Errorf("%w: the connection is already in a transaction: call Lock in it", ErrTx)
	}
	if err := checkEngine(pgtx.Conn(db)); err != nil {
		return err
	}
	tx, err := d.begin(ctx, db)
	if err != nil {
		return d.nameHolder(ctx, db, err)
	}
	return d.callAndCommit(ctx, tx)
}

// callAndCommit calls the function and ends the transaction.
func (d *doCall) callAndCommit(ctx context.Context, tx pgx.Tx) (err error) {
	committed := false
	defer func() { // without recover, so that a panic keeps its stack
		if !committed {
			err = errs.Join(err, pgtx.Rollback(ctx, tx))
		}
	}()
	if err := d.fn(ctx, tx); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return errs.Errorf("advisory: rolled back: %w", errs.ContextErr(ctx))
	}
	committed = true
	return commit(ctx, tx)
}

// commit commits the transaction, and its error says whether the transaction was rolled back or may
// be committed.
func commit(ctx context.Context, tx pgx.Tx) error {
	if conn := pgtx.Conn(tx); conn != nil && !conn.IsClosed() && conn.PgConn().TxStatus() == 'I' {
		return errs.Join(errs.Errorf("%w: the function has ended it, and with it the lock", ErrTx), pgtx.Rollback(ctx, tx))
	}
	err := tx.Commit(ctx)
	switch state := pgtx.SQLState(err); {
	case err == nil:
		return nil
	case errors.Is(err, pgx.ErrTxClosed):
		return errs.Errorf("%w: the function has ended it: %w", ErrTx, err)
	case errors.Is(err, pgx.ErrTxCommitRollback), pgconn.SafeToRetry(err),
		state != "" && !strings.HasPrefix(state, "08") && !strings.HasPrefix(state, "57P"):
		return errs.Errorf("advisory: rolled back: %w", err)
	}
	return errs.Errorf("%w: %w", ErrCommitUnknown, err)
}

// begin begins the transaction and waits for the lock, in one round trip. If it fails, it rolls
// back, or closes the connection if a lock could stay behind in the session.
//
// A transaction above READ COMMITTED begins at READ COMMITTED and is raised once it holds the lock.
// If the level is the server's default, which only the server knows, that is another round trip.
func (d *doCall) begin(ctx context.Context, db DB) (pgx.Tx, error) {
	var tx pgx.Tx // nil before BEGIN
	d.exposed = false
	level, found, batch := d.cfg.isolation, pgx.TxIsoLevel(""), &pgx.Batch{}
	raise := hasSnapshot(level)
	if raise {
		batch.BeginTx(pgx.TxOptions{IsoLevel: pgx.ReadCommitted})
	} else {
		batch.BeginTx(pgx.TxOptions{IsoLevel: level})
	}
	q := d.statement(pgtx.LockTimeout(ctx, d.timeoutAt()))
	batch.Queue(q.SQL, q.Args...).QueryRow(func(row pgx.Row) error {
		err := row.Scan(nil, &found)
		d.exposed = raise && err == nil
		return err
	})
	if raise {
		d.queueRaise(batch, level)
	}
	conn := pgtx.Conn(db)
	err := pgtx.Run(ctx, conn, pgtx.CancelSoon, func(ctx context.Context) error {
		results := db.SendBatch(ctx, batch)
		tx = results.Tx()
		return results.Close()
	})
	if err == nil && !raise && hasSnapshot(found) {
		batch, d.exposed = &pgx.Batch{}, true
		d.queueRaise(batch, found)
		err = pgtx.Run(ctx, conn, pgtx.LetFinish, func(ctx context.Context) error { return tx.SendBatch(ctx, batch).Close() })
	}
	switch {
	case err == nil:
		return tx, nil
	case tx == nil:
		return nil, d.explain(ctx, err)
	case d.exposed && pgtx.Conn(tx) != nil:
		return nil, errs.Join(d.explain(ctx, err), pgtx.CleanUp(ctx, pgtx.Conn(tx).Close))
	}
	return nil, errs.Join(d.explain(ctx, err), pgtx.Rollback(ctx, tx))
}

// hasSnapshot reports whether a transaction at that level reads from one snapshot.
func hasSnapshot(level pgx.TxIsoLevel) bool {
	return level == pgx.RepeatableRead || level == pgx.Serializable
}

// queueRaise queues the statements that turn a transaction that holds the locks into one of a
// higher isolation level that holds them and has no snapshot yet. Meanwhile the session holds the
// locks: a session is granted what its transaction holds already. A pooler does not lend the
// session to others, because it sees no end of the transaction.
func (d *doCall) queueRaise(batch *pgx.Batch, level pgx.TxIsoLevel) {
	for _, k := range d.keys {
		q := k.calling("pg_advisory_lock")
		batch.Queue(q.SQL, q.Args...)
	}
	batch.Queue("COMMIT AND CHAIN")
	batch.Queue("SET TRANSACTION ISOLATION LEVEL " + string(level))
	q := d.statement(0)
	batch.Queue(q.SQL, q.Args...)
	for i, k := range d.keys {
		q := k.calling("pg_advisory_unlock")
		batch.Queue(q.SQL, q.Args...).QueryRow(func(row pgx.Row) error {
			var held bool
			if err := row.Scan(&held); err != nil || !held {
				return errs.Join(err, errNotHeld)
			}
			d.exposed = d.exposed && i < len(d.keys)-1
			return nil
		})
	}
}
