package advisory

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/pglock/pglock-go/internal/errs"
	"github.com/pglock/pglock-go/internal/pgtx"
)

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
