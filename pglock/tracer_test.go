package pglock_test

import (
	"context"
	"crypto/rand"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/observe"
)

// traced is a statement that a tracer has seen.
type traced struct {
	sql     string
	ofACall bool // its context has the values of the call's context
}

// spy is a tracer of connections, statements and the pool.
type spy struct {
	mu         sync.Mutex
	statements []traced
	connects   int
	prepares   int
	acquires   int
	failed     []error
}

type ofACall struct{}

func (s *spy) TraceQueryStart(ctx context.Context, _ *pgx.Conn, d pgx.TraceQueryStartData) context.Context {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.statements = append(s.statements, traced{d.SQL, ctx.Value(ofACall{}) != nil})
	return ctx
}

func (s *spy) TraceQueryEnd(_ context.Context, _ *pgx.Conn, d pgx.TraceQueryEndData) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if d.Err != nil {
		s.failed = append(s.failed, d.Err)
	}
}

func (s *spy) TraceBatchStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceBatchStartData) context.Context {
	return ctx
}

func (s *spy) TraceBatchQuery(_ context.Context, _ *pgx.Conn, d pgx.TraceBatchQueryData) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.statements = append(s.statements, traced{sql: d.SQL})
	if d.Err != nil {
		s.failed = append(s.failed, d.Err)
	}
}

func (*spy) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData) {}

func (s *spy) TraceConnectStart(ctx context.Context, _ pgx.TraceConnectStartData) context.Context {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.connects++
	return ctx
}

func (*spy) TraceConnectEnd(context.Context, pgx.TraceConnectEndData) {}

func (s *spy) TracePrepareStart(ctx context.Context, _ *pgx.Conn, _ pgx.TracePrepareStartData) context.Context {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.prepares++
	return ctx
}

func (*spy) TracePrepareEnd(context.Context, *pgx.Conn, pgx.TracePrepareEndData) {}

func (s *spy) TraceAcquireStart(ctx context.Context, _ *pgxpool.Pool, _ pgxpool.TraceAcquireStartData) context.Context {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.acquires++
	return ctx
}

func (*spy) TraceAcquireEnd(context.Context, *pgxpool.Pool, pgxpool.TraceAcquireEndData) {}

// saw reports whether there was a statement with that text, and whether its context was that of a
// call.
func (s *spy) saw(text string) (seen, ofACall bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := slices.IndexFunc(s.statements, func(st traced) bool { return strings.Contains(st.sql, text) })
	if i < 0 {
		return false, false
	}
	return true, s.statements[i].ofACall
}

// TestTracerOfThePool holds what the package documentation says about the pool's tracer and about
// application_name.
func TestTracerOfThePool(t *testing.T) {
	t.Parallel()
	f, s, r := newFixture(t), &spy{}, &recorder{}
	config := f.pool.Config().Copy()
	config.ConnConfig.Tracer = s
	application := "billing " + rand.Text()
	config.ConnConfig.RuntimeParams["application_name"] = application
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	must(t, err)
	t.Cleanup(pool.Close)
	c, err := pglock.Open(t.Context(), pool, pglock.WithSchema(f.schema), pglock.WithRenewEvery(time.Second), pglock.WithObserver(r.hooks()))
	must(t, err)
	defer func() { _ = c.Close(context.Background()) }()
	if n := len(s.statements); n != 0 {
		t.Errorf("it saw the checks of a connection: %v", s.statements)
	}

	ctx := context.WithValue(t.Context(), ofACall{}, true)
	l, err := c.Acquire(ctx, "n")
	must(t, err)
	await[observe.RenewalEvent](t, r, 1)
	pgtest.Eventually(t, "its own connections are named", func() bool {
		return value[int](f, "SELECT count(*) FROM pg_stat_activity WHERE application_name = $1", application+" (pglock)") > 0
	})
	waiting, giveUp := context.WithCancel(ctx)
	defer giveUp()
	left := make(chan struct{})
	go func() {
		defer close(left)
		if _, err := c.Acquire(waiting, "n"); err == nil {
			t.Error("granted twice")
		}
	}()
	pgtest.Eventually(t, "the listener", func() bool { seen, _ := s.saw("LISTEN"); return seen })
	giveUp()
	<-left
	s.mu.Lock()
	if s.connects < 2 || s.prepares == 0 || s.acquires != 0 {
		t.Errorf("%d connects, %d prepared, %d acquired from the pool", s.connects, s.prepares, s.acquires)
	}
	for _, st := range s.statements {
		if st.ofACall {
			t.Errorf("a shared statement has the context of a call: %s", st.sql)
		}
	}
	s.statements = nil
	s.mu.Unlock()
	if _, err := c.Get(ctx, "n"); err != nil {
		t.Error(err)
	}
	if seen, ofACall := s.saw("x.expired"); !seen || !ofACall {
		t.Errorf("Get: seen %v, with the context of the call: %v", seen, ofACall)
	}
	s.mu.Lock()
	s.statements = nil
	s.mu.Unlock()
	check(t, l.Extend(ctx, time.Minute))
	s.mu.Lock()
	if !slices.ContainsFunc(s.statements, func(st traced) bool { return st.ofACall }) {
		t.Errorf("Extend: %v", s.statements)
	}
	s.mu.Unlock()
	release(t, l)
}
