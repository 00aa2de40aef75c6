package pgtx

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// errIncomplete: the server sent fewer answers than it got statements, so pgx has closed the
// connection.
var errIncomplete = errors.New("pglock: the server's answer is incomplete")

// pipeline sends SAVEPOINT, a query and RELEASE SAVEPOINT in one round trip. It asks the server to
// answer the first at once. The server parses the statements in order, so that the query is parsed,
// and prepared, inside the savepoint.
type pipeline struct {
	conn    *pgx.Conn
	config  *pgx.ConnConfig
	queries [3]Query
}

// run returns whether the server has confirmed the savepoint. ctx can cancel nothing before
// that.
func (p *pipeline) run(ctx context.Context, tx batcher) (set bool, err error) {
	// An empty batch sends nothing, but fails if tx is closed, after which conn may serve another
	// caller.
	if err := tx.SendBatch(ctx, &pgx.Batch{}).Close(); err != nil {
		return false, err
	}
	ready := make(chan struct{})
	err = runAfter(ctx, p.conn, ready, CancelSoon, func(ctx context.Context) error {
		return p.traced(ctx, func(answered func(n int, err error)) error {
			wire := p.conn.PgConn().StartPipeline(ctx)
			err := p.send(wire)
			if err == nil {
				err = p.receive(wire, func(n int, err error) {
					if n == 0 && err == nil {
						set = true
						close(ready) // from here on ctx can cancel
					}
					answered(n, err)
				})
			}
			if closed := wire.Close(); err == nil { // reads what the server still sends
				err = closed
			}
			return err
		})
	})
	return set, err
}

// send sends the three statements of the pipeline.
func (p *pipeline) send(wire *pgconn.Pipeline) error {
	q, prepared := p.queries[1], preparedOn(p.conn)
	var params pgx.ExtendedQueryBuilder
	if err := params.Build(p.conn.TypeMap(), nil, q.Args); err != nil {
		return err
	}
	wire.SendQueryParams(p.queries[0].SQL, nil, nil, nil, nil)
	wire.SendFlushRequest()
	if p.config.DefaultQueryExecMode == pgx.QueryExecModeCacheStatement {
		name := statementName(q.SQL)
		if !prepared[q.SQL] {
			// Of a preparation whose answer was lost; no error if there was none.
			wire.SendDeallocate(name)
			wire.SendPrepare(name, q.SQL, nil)
		}
		wire.SendQueryPrepared(name, params.ParamValues, params.ParamFormats, nil)
	} else {
		wire.SendQueryParams(q.SQL, params.ParamValues, nil, params.ParamFormats, nil)
	}
	wire.SendQueryParams(p.queries[2].SQL, nil, nil, nil, nil)
	return wire.Sync()
}

// receive reads the answers and calls answered for each of the three statements, in order,
// until one has failed.
func (p *pipeline) receive(wire *pgconn.Pipeline, answered func(n int, err error)) error {
	q, prepared := p.queries[1], preparedOn(p.conn)
	for n := 0; n < len(p.queries); {
		results, err := wire.GetResults()
		switch r := results.(type) {
		case *pgconn.ResultReader:
			if _, err = r.Close(); err == nil {
				answered(n, nil)
				n++
			}
		case *pgconn.StatementDescription:
			prepared[q.SQL] = true
		case nil:
			if err == nil {
				return errIncomplete
			}
		}
		if err != nil {
			if SQLState(err) == InvalidSQLStatementName {
				delete(prepared, q.SQL)
			}
			answered(n, err)
			return err
		}
	}
	return nil
}

// preparedOn returns the statements that pipelines have prepared on the connection. pgx's own cache
// is of no use, because it prepares before the savepoint.
func preparedOn(conn *pgx.Conn) map[string]bool {
	const key = "pglock.prepared"
	data := conn.PgConn().CustomData()
	prepared, ok := data[key].(map[string]bool)
	if !ok {
		prepared = map[string]bool{}
		data[key] = prepared
	}
	return prepared
}

// statementName returns the name under which sql is prepared.
func statementName(sql string) string {
	digest := sha256.Sum256([]byte(sql))
	return "pglock_" + hex.EncodeToString(digest[:12])
}

// traced reports the queries to the connection's tracer as a batch. pgx does so only for the
// batches that it sends itself.
func (p *pipeline) traced(ctx context.Context, send func(answered func(n int, err error)) error) error {
	tracer, ok := p.config.Tracer.(pgx.BatchTracer)
	if !ok {
		return send(func(int, error) {})
	}
	batch := &pgx.Batch{}
	for _, q := range p.queries {
		batch.Queue(q.SQL, q.Args...)
	}
	ctx = tracer.TraceBatchStart(ctx, p.conn, pgx.TraceBatchStartData{Batch: batch})
	err := send(func(n int, err error) {
		tracer.TraceBatchQuery(ctx, p.conn, pgx.TraceBatchQueryData{SQL: p.queries[n].SQL, Args: p.queries[n].Args, Err: err})
	})
	tracer.TraceBatchEnd(ctx, p.conn, pgx.TraceBatchEndData{Err: err})
	return err
}
