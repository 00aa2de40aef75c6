package advisory_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/advisory"
	"github.com/pglock/pglock-go/internal/pgtest"
)

// traced records the statements that pgx reports to a tracer, and their contexts.
type traced struct {
	mu         sync.Mutex
	statements []string
	foreign    int // without the caller's value
}

type traceKey struct{}

func (tr *traced) TraceQueryStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	tr.statements = append(tr.statements, data.SQL)
	if ctx.Value(traceKey{}) == nil {
		tr.foreign++
	}
	return ctx
}

func (tr *traced) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// TestTracersSeeTheCallersStatements: those of Acquire and Release, with the caller's context, and
// not the many probes in between.
func TestTracersSeeTheCallersStatements(t *testing.T) {
	t.Parallel()
	tr := &traced{}
	pool := pgtest.Pool(t, func(c *pgxpool.Config) { c.ConnConfig.Tracer = tr })
	ctx := context.WithValue(t.Context(), traceKey{}, true)
	key := advisory.NewKey("traced", t.Name())
	s, err := advisory.Acquire(ctx, pool, key, advisory.WithKeepAliveTimeout(4*time.Second))
	ok(t, err)
	tr.mu.Lock()
	before := len(tr.statements)
	tr.mu.Unlock()
	probed(t, pgtest.Pool(t), s)
	ok(t, s.Release(ctx))
	tr.mu.Lock()
	defer tr.mu.Unlock()
	if later := tr.statements[before:]; len(later) != 1 || !strings.Contains(later[0], "pg_advisory_unlock") || tr.foreign != 0 {
		t.Errorf("%d without the caller's context, of %q; since the lock was held: %q", tr.foreign, tr.statements, later)
	}
}

// batchTracer records the batches that pgx reports to a tracer.
type batchTracer struct {
	traced
	ended, failed int
}

func (tr *batchTracer) TraceBatchStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceBatchStartData) context.Context {
	return ctx
}

func (tr *batchTracer) TraceBatchQuery(ctx context.Context, conn *pgx.Conn, data pgx.TraceBatchQueryData) {
	tr.TraceQueryStart(ctx, conn, pgx.TraceQueryStartData{SQL: data.SQL, Args: data.Args})
}

func (tr *batchTracer) TraceBatchEnd(_ context.Context, _ *pgx.Conn, data pgx.TraceBatchEndData) {
	tr.ended++
	if data.Err != nil {
		tr.failed++
	}
}

// TestTracersSeeLock: its three statements, with the caller's context, and its result.
func TestTracersSeeLock(t *testing.T) {
	t.Parallel()
	tr := &batchTracer{}
	pool := pgtest.Pool(t, func(c *pgxpool.Config) { c.ConnConfig.Tracer = tr })
	key := advisory.NewKey("traced", t.Name())
	tx := begin(t, pool)
	tr.statements, tr.foreign = nil, 0
	ctx := context.WithValue(t.Context(), traceKey{}, true)
	ok(t, advisory.Lock(ctx, tx, key))
	if len(tr.statements) != 3 || !strings.Contains(tr.statements[1], "pg_advisory_xact_lock(") || tr.foreign != 0 || tr.ended != 1 || tr.failed != 0 {
		t.Errorf("%q, %d without the caller's context, %d ended, %d failed", tr.statements, tr.foreign, tr.ended, tr.failed)
	}
	if err := advisory.Lock(ctx, begin(t, pool), key, advisory.WithTimeout(time.Millisecond)); !errors.Is(err, advisory.ErrTimeout) {
		t.Error(err)
	}
	if tr.ended != 2 || tr.failed != 1 {
		t.Errorf("%d ended, %d failed", tr.ended, tr.failed)
	}
}
