package advisory

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/internal/await"
)

// beginning is a transaction of Do on its way to the lock.
type beginning struct {
	db      DB
	tx      pgx.Tx // once it has begun
	level   string // its isolation level, once the lock is held
	release func() // gives a pool's connection back
}

// connect finds the connection: the caller's, or one of the pool.
func (w *work) connect(ctx context.Context) (*beginning, error) {
	b := &beginning{db: w.db, release: func() {}}
	if pool, ok := w.db.(*pgxpool.Pool); ok {
		conn, err := w.fromPool(ctx, pool, w.cfg.poolWait)
		switch {
		case err == nil:
			b.db, b.release = conn, conn.Release
		case ctx.Err() != nil, errors.Is(err, ErrPoolExhausted):
			return nil, w.notAcquired(err)
		default:
			return nil, fmt.Errorf("advisory: %w", err)
		}
	}
	if conn := connOf(b.db); conn != nil && conn.PgConn().TxStatus() != 'I' && !conn.IsClosed() {
		b.release()
		return nil, fmt.Errorf("%w: the connection is in a transaction already: use Lock in it", ErrTx)
	}
	return b, nil
}

// options are those of BEGIN. Above READ COMMITTED the transaction begins at READ COMMITTED
// and is raised once it has the lock.
func (w *work) options() pgx.TxOptions {
	o := w.cfg.tx
	if raised(string(o.IsoLevel)) {
		o.IsoLevel = pgx.ReadCommitted
	}
	return o
}

// raised reports whether reads at that level come from one snapshot.
func raised(level string) bool {
	return level == string(pgx.RepeatableRead) || level == string(pgx.Serializable)
}

// lockFirst begins the transaction and waits for the lock, in one round trip.
func (w *work) lockFirst(ctx context.Context, b *beginning) error {
	bound, byContext := w.bound(ctx)
	batch := &pgx.Batch{}
	batch.BeginTx(w.options())
	q := w.statement(bound)
	raise := raised(string(w.cfg.tx.IsoLevel))
	exposed := false
	batch.Queue(q.sql, q.args...).QueryRow(func(row pgx.Row) error {
		err := row.Scan(nil, &b.level)
		exposed = raise && err == nil
		return err
	})
	if raise {
		w.queueRaise(batch, w.cfg.tx.IsoLevel, &exposed)
	}
	if err := b.send(ctx, batch); err != nil {
		return errors.Join(w.explain(ctx, err, byContext), b.abandon(ctx, exposed))
	}
	if !raise && raised(b.level) { // the server's default, which only it knows
		return w.raise(ctx, b, pgx.TxIsoLevel(b.level))
	}
	return nil
}

// tryFirst begins the transaction and asks for the lock once. It returns errBusy, and
// has rolled back, if somebody else holds it.
func (w *work) tryFirst(ctx context.Context, b *beginning) error {
	batch := &pgx.Batch{}
	batch.BeginTx(w.options())
	got := true
	for _, k := range w.keys {
		q := k.calling(w.suffixed("pg_try_advisory_xact_lock"))
		batch.Queue(q.sql+", current_setting('transaction_isolation')", q.args...).QueryRow(func(row pgx.Row) error {
			var one bool
			err := row.Scan(&one, &b.level)
			got = got && one
			return err
		})
	}
	if err := b.send(ctx, batch); err != nil {
		return errors.Join(w.explain(ctx, err, false), b.abandon(ctx, false))
	}
	if !got {
		return errors.Join(errBusy, b.abandon(ctx, false))
	}
	level := w.cfg.tx.IsoLevel
	if level == "" {
		level = pgx.TxIsoLevel(b.level)
	}
	if raised(string(level)) {
		return w.raise(ctx, b, level)
	}
	return nil
}

// raise is queueRaise in a round trip of its own.
func (w *work) raise(ctx context.Context, b *beginning, level pgx.TxIsoLevel) error {
	batch := &pgx.Batch{}
	exposed := true
	w.queueRaise(batch, level, &exposed)
	err := await.Run(ctx, connOf(b.db), await.UntilAnswered, func(ctx context.Context) error { return b.tx.SendBatch(ctx, batch).Close() })
	if err == nil {
		return nil
	}
	return errors.Join(w.explain(ctx, err, false), b.abandon(ctx, exposed))
}

// queueRaise turns a transaction that holds the locks into one of a higher isolation level
// that holds them and has no snapshot yet. The locks outlast the change as the
// session's, which is granted what its transaction holds already. A pooler does not take
// the session away meanwhile: to it, the transaction never ends. When all is done the
// session is not exposed any more; if it fails before, the session must end.
func (w *work) queueRaise(batch *pgx.Batch, level pgx.TxIsoLevel, exposed *bool) {
	for _, k := range w.keys {
		q := k.calling("pg_advisory_lock")
		batch.Queue(q.sql, q.args...)
	}
	batch.Queue("COMMIT AND CHAIN")
	batch.Queue("SET TRANSACTION ISOLATION LEVEL " + string(level))
	q := w.statement(0)
	batch.Queue(q.sql, q.args...)
	for i, k := range w.keys {
		q := k.calling("pg_advisory_unlock")
		batch.Queue(q.sql, q.args...).QueryRow(func(row pgx.Row) error {
			var held bool
			if err := row.Scan(&held); err != nil || !held {
				return errors.Join(err, errNotHeld)
			}
			*exposed = *exposed && i < len(w.keys)-1
			return nil
		})
	}
}

// send sends the batch that begins the transaction.
func (b *beginning) send(ctx context.Context, batch *pgx.Batch) error {
	return await.Run(ctx, connOf(b.db), await.WhileBlocked, func(ctx context.Context) error {
		results := b.db.SendBatch(ctx, batch)
		b.tx = results.Tx()
		return results.Close()
	})
}

// abandon rolls back what was begun, and ends the session if it may hold a lock of its own.
func (b *beginning) abandon(ctx context.Context, exposed bool) error {
	if b.tx == nil {
		return nil
	}
	if conn := connOf(b.tx); exposed && conn != nil {
		return await.CleanUp(ctx, conn.Close)
	}
	return rollBack(ctx, b.tx)
}
