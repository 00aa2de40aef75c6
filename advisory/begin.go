package advisory

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/pglock/pglock-go/internal/errs"
	"github.com/pglock/pglock-go/internal/pgtx"
)

// txAttempt is a transaction of Do that begins with the lock.
type txAttempt struct {
	db      DB
	tx      pgx.Tx // nil before BEGIN
	level   string // the isolation level, known once the lock is held
	release func() // returns the connection to its pool
}

// connect finds the connection: the caller's, or one of the pool.
func (d *doCall) connect(ctx context.Context) (*txAttempt, error) {
	db, release, err := d.lend(ctx, d.call, d.cfg.poolWait)
	if err != nil {
		return nil, err
	}
	a := &txAttempt{db: db, release: release}
	if conn := pgtx.Conn(a.db); conn != nil && conn.PgConn().TxStatus() != 'I' && !conn.IsClosed() {
		a.release()
		return nil, errs.Errorf("%w: the connection is already in a transaction: call Lock in it", ErrTx)
	}
	return a, nil
}

// options returns those of BEGIN. A transaction above READ COMMITTED begins at READ COMMITTED
// and is raised once it holds the lock.
func (d *doCall) options() pgx.TxOptions {
	o := d.cfg.tx
	if hasSnapshot(string(o.IsoLevel)) {
		o.IsoLevel = pgx.ReadCommitted
	}
	return o
}

// hasSnapshot reports whether a transaction at that level reads from one snapshot.
func hasSnapshot(level string) bool {
	return level == string(pgx.RepeatableRead) || level == string(pgx.Serializable)
}

// lockFirst begins the transaction and waits for the lock, in one round trip.
func (d *doCall) lockFirst(ctx context.Context, a *txAttempt) error {
	batch := &pgx.Batch{}
	batch.BeginTx(d.options())
	q := d.statement(pgtx.LockTimeout(ctx, d.timeoutAt()))
	raise := hasSnapshot(string(d.cfg.tx.IsoLevel))
	exposed := false
	batch.Queue(q.SQL, q.Args...).QueryRow(func(row pgx.Row) error {
		err := row.Scan(nil, &a.level)
		exposed = raise && err == nil
		return err
	})
	if raise {
		d.queueRaise(batch, d.cfg.tx.IsoLevel, &exposed)
	}
	if err := a.send(ctx, batch); err != nil {
		return errs.Join(d.explain(ctx, err), a.abandon(ctx, exposed))
	}
	if !raise && hasSnapshot(a.level) { // the server's default, which only the server knows
		return d.raise(ctx, a, pgx.TxIsoLevel(a.level))
	}
	return nil
}

// tryFirst begins the transaction and tries the lock once. If another session holds the lock,
// it rolls back and returns errBusy.
func (d *doCall) tryFirst(ctx context.Context, a *txAttempt) error {
	batch := &pgx.Batch{}
	batch.BeginTx(d.options())
	got := true
	for _, k := range d.keys {
		q := k.calling(d.suffixed("pg_try_advisory_xact_lock"))
		batch.Queue(q.SQL+", current_setting('transaction_isolation')", q.Args...).QueryRow(func(row pgx.Row) error {
			var one bool
			err := row.Scan(&one, &a.level)
			got = got && one
			return err
		})
	}
	if err := a.send(ctx, batch); err != nil {
		return errs.Join(d.explain(ctx, err), a.abandon(ctx, false))
	}
	if !got {
		return errs.Join(errBusy, a.abandon(ctx, false))
	}
	level := d.cfg.tx.IsoLevel
	if level == "" {
		level = pgx.TxIsoLevel(a.level)
	}
	if hasSnapshot(string(level)) {
		return d.raise(ctx, a, level)
	}
	return nil
}

// raise is queueRaise in a round trip of its own.
func (d *doCall) raise(ctx context.Context, a *txAttempt, level pgx.TxIsoLevel) error {
	batch := &pgx.Batch{}
	exposed := true
	d.queueRaise(batch, level, &exposed)
	err := pgtx.Run(ctx, pgtx.Conn(a.db), pgtx.LetFinish, func(ctx context.Context) error {
		return a.tx.SendBatch(ctx, batch).Close()
	})
	if err == nil {
		return nil
	}
	return errs.Join(d.explain(ctx, err), a.abandon(ctx, exposed))
}

// queueRaise queues the statements that turn a transaction that holds the locks into one of a
// higher isolation level that holds them and has no snapshot yet. Meanwhile the session holds the
// locks: a session is granted what its transaction holds already. A pooler does not lend the
// session to others, because it sees no end of the transaction.
//
// exposed is true while the session may hold a lock that outlives the transaction. If a statement
// fails before exposed is false, the session must be closed.
func (d *doCall) queueRaise(batch *pgx.Batch, level pgx.TxIsoLevel, exposed *bool) {
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
			*exposed = *exposed && i < len(d.keys)-1
			return nil
		})
	}
}

// send sends the batch that begins the transaction.
func (a *txAttempt) send(ctx context.Context, batch *pgx.Batch) error {
	return pgtx.Run(ctx, pgtx.Conn(a.db), pgtx.CancelSoon, func(ctx context.Context) error {
		results := a.db.SendBatch(ctx, batch)
		a.tx = results.Tx()
		return results.Close()
	})
}

// abandon rolls back, and closes an exposed session.
func (a *txAttempt) abandon(ctx context.Context, exposed bool) error {
	if a.tx == nil {
		return nil
	}
	if conn := pgtx.Conn(a.tx); exposed && conn != nil {
		return pgtx.CleanUp(ctx, conn.Close)
	}
	return rollback(ctx, a.tx)
}
