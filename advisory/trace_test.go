package advisory_test

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/advisory"
	"github.com/pglock/pglock-go/internal/pgtest"
)

// traced notes the statements that a tracer of pgx is told of, and with which context.
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

// TestTracersAreToldOfTheCallersStatements: of those of Acquire and Release with the caller's context, and not of
// the questions in between, of which there are many.
func TestTracersAreToldOfTheCallersStatements(t *testing.T) {
	t.Parallel()
	tr := &traced{}
	pool := pgtest.Pool(t, func(c *pgxpool.Config) { c.ConnConfig.Tracer = tr })
	ctx := context.WithValue(t.Context(), traceKey{}, true)
	key := advisory.NewKey("traced", t.Name())
	s, err := advisory.Acquire(ctx, pool, key, advisory.WithNotice(4*time.Second))
	if err != nil {
		t.Fatal(err)
	}
	tr.mu.Lock()
	before := len(tr.statements)
	tr.mu.Unlock()
	select {
	case <-s.Done():
		t.Error(s.Err())
	case <-time.After(1500 * time.Millisecond):
	}
	if err := s.Release(ctx); err != nil {
		t.Error(err)
	}
	tr.mu.Lock()
	defer tr.mu.Unlock()
	if later := tr.statements[before:]; len(later) != 1 || !strings.Contains(later[0], "pg_advisory_unlock") || tr.foreign != 0 {
		t.Errorf("%d without the caller's context, of %q; since the lock was held: %q", tr.foreign, tr.statements, later)
	}
}
