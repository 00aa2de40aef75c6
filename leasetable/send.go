package leasetable

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// statement is one of the protocol's, with its arguments and with what takes its rows.
type statement struct {
	sql  string
	args []any
	row  func(pgx.Rows) error // called for each, scans it; may be nil
}

// send runs what is no renewal. It returns the time just before the statement was
// sent: what the server promises counts from there.
func (c *connections) send(ctx context.Context, s statement) (time.Time, error) {
	ctx, cancel := c.living(ctx)
	defer cancel()
	return c.sendWithin(ctx, c.slots, s)
}

// sendOwn is send where ctx is derived from the client's life.
func (c *connections) sendOwn(ctx context.Context, s statement) (time.Time, error) {
	return c.sendWithin(ctx, c.slots, s)
}

// sendRenewal runs a renewal.
func (c *connections) sendRenewal(ctx context.Context, s statement) (time.Time, error) {
	ctx, cancel := c.living(ctx)
	defer cancel()
	return c.sendWithin(ctx, c.renewals, s)
}

// living returns a context that ends with ctx and with the client's life.
func (c *connections) living(ctx context.Context) (_ context.Context, cancel func()) {
	ctx, end := context.WithCancelCause(ctx)
	stop := context.AfterFunc(c.life, func() { end(ErrClosed) })
	return ctx, func() { stop(); end(nil) }
}

func (c *connections) sendWithin(ctx context.Context, slots chan struct{}, s statement) (sent time.Time, err error) {
	select {
	case slots <- struct{}{}:
		defer func() { <-slots }()
	case <-ctx.Done():
		return sent, context.Cause(ctx)
	}
	conn, err := c.pool.Acquire(ctx)
	if err != nil {
		return sent, c.explainEnd(err)
	}
	sent = time.Now()
	if c.explicitRC.Load() {
		err = s.sendInTransaction(ctx, conn)
	} else {
		err = s.sendAlone(ctx, conn)
	}
	conn.Release() // which destroys it unless it is idle and healthy
	if connectionFailed(err) {
		// The other idle connections have likely met the same restart, failover or
		// forgetful firewall. Trying them one by one would cost a time-out each.
		c.pool.Reset()
	}
	return sent, c.explainEnd(err)
}

// explainEnd adds ErrClosed to what failed with the end of the client's life.
func (c *connections) explainEnd(err error) error {
	if err != nil && c.life.Err() != nil {
		return fmt.Errorf("%w: %w", ErrClosed, err)
	}
	return err
}

func (s statement) sendAlone(ctx context.Context, conn *pgxpool.Conn) error {
	rows, err := conn.Query(ctx, s.sql, s.args...)
	if err != nil {
		return err
	}
	return s.read(rows)
}

// sendInTransaction is for servers whose default isolation is stricter: takeovers
// would fail to serialize instead of taking turns, and one READ COMMITTED statement
// needs none of that. All goes out at once: a client that stopped before its COMMIT
// would keep the row from everybody for as long as it sleeps.
func (s statement) sendInTransaction(ctx context.Context, conn *pgxpool.Conn) error {
	batch := &pgx.Batch{}
	batch.Queue("BEGIN ISOLATION LEVEL READ COMMITTED")
	batch.Queue(s.sql, s.args...).Query(s.read)
	batch.Queue("COMMIT")
	return conn.SendBatch(ctx, batch).Close()
}

func (s statement) read(rows pgx.Rows) error {
	defer rows.Close()
	for rows.Next() {
		if s.row == nil {
			continue
		}
		if err := s.row(rows); err != nil {
			return err
		}
	}
	return rows.Err()
}
