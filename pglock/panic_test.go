package pglock_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/fstest"
	"time"

	"github.com/golang-migrate/migrate/v4/source"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/migrations"
	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/inspect"
	"github.com/pglock/pglock-go/pglock/leader"
	"github.com/pglock/pglock-go/pglock/observe"
	"github.com/pglock/pglock-go/pglock/once"
	"github.com/pglock/pglock-go/pglock/once/oncehttp"
	"github.com/pglock/pglock-go/pglock/runner"
	"github.com/pglock/pglock-go/pglock/schedule"
)

// bomb counts its panics.
type bomb struct{ atomic.Int32 }

func panics[E any](b *bomb) func(context.Context, E) {
	return func(context.Context, E) { b.Add(1); panic("boom") }
}

// TestPanicsOfObserversChangeNothing: each hook panics, and then each method of the logger's handler. The
// calls have their results, an observer after the one that panics has its events, and no lease is left.
func TestPanicsOfObserversChangeNothing(t *testing.T) {
	t.Parallel()
	hooks := map[string]func(*bomb) observe.Hooks{
		"Wait":    func(b *bomb) observe.Hooks { return observe.Hooks{Wait: panics[observe.WaitEvent](b)} },
		"Acquire": func(b *bomb) observe.Hooks { return observe.Hooks{Acquire: panics[observe.AcquireEvent](b)} },
		"Handoff": func(b *bomb) observe.Hooks { return observe.Hooks{Handoff: panics[observe.HandoffEvent](b)} },
		"Renewal": func(b *bomb) observe.Hooks { return observe.Hooks{Renewal: panics[observe.RenewalEvent](b)} },
		"Loss":    func(b *bomb) observe.Hooks { return observe.Hooks{Loss: panics[observe.LossEvent](b)} },
		"Release": func(b *bomb) observe.Hooks { return observe.Hooks{Release: panics[observe.ReleaseEvent](b)} },
		"Batch":   func(b *bomb) observe.Hooks { return observe.Hooks{Batch: panics[observe.BatchEvent](b)} },
		"Result":  func(b *bomb) observe.Hooks { return observe.Hooks{Result: panics[observe.ResultEvent](b)} },
	}
	for hook, of := range hooks {
		bubbles(t, hook, func(t *testing.T, f fake) {
			var b bomb
			log, after := &logBuffer{}, &recorder{}
			useAll(t, f, after, log.option(), pglock.WithObserver(of(&b)), pglock.WithObserver(after.hooks()))
			if b.Load() == 0 || !strings.Contains(log.String(), "an observer panicked") || !strings.Contains(log.String(), "panic_test.go") {
				t.Errorf("%d panics, the log:\n%s", b.Load(), log)
			}
		})
	}
	for name, h := range map[string]*badHandler{"Enabled": {in: "Enabled"}, "Handle": {in: "Handle"}, "WithAttrs": {in: "WithAttrs"}} {
		bubbles(t, "logger "+name, func(t *testing.T, f fake) {
			after := &recorder{}
			useAll(t, f, after, pglock.WithLogger(slog.New(h)), pglock.WithObserver(after.hooks()))
			if h.Load() == 0 {
				t.Error("the handler was not called")
			}
		})
	}
}

// badHandler panics in one of its methods.
type badHandler struct {
	bomb
	in string
}

func (h *badHandler) boom(in string) {
	if h.in == in {
		h.Add(1)
		panic("boom")
	}
}
func (h *badHandler) Enabled(context.Context, slog.Level) bool  { h.boom("Enabled"); return true }
func (h *badHandler) Handle(context.Context, slog.Record) error { h.boom("Handle"); return nil }
func (h *badHandler) WithAttrs([]slog.Attr) slog.Handler        { h.boom("WithAttrs"); return h }
func (h *badHandler) WithGroup(string) slog.Handler             { return h }

// useAll raises each event: a lock is granted, awaited, handed off, renewed, lost and released.
func useAll(t *testing.T, f fake, seen *recorder, opts ...pglock.Option) {
	t.Helper()
	c := f.open(append(opts, pglock.WithTTL(time.Minute))...)
	held := try(t, c, "n")
	must(t, held.Extend(t.Context(), time.Hour))
	got := f.waits(c.Lock("n"))
	release(t, held)
	release(t, next(t, got))
	short := try(t, c, "short", pglock.WithTTL(3*time.Second))
	rest(t, 3*time.Second)
	must(t, c.Revoke(t.Context(), "short", short.Token(), "why"))
	fails(t, "the revoked lease", short.Err(), pglock.ErrRevoked)
	c.Report(t.Context(), observe.ResultEvent{Kind: "mine"})
	check(t, c.Do(t.Context(), "n", func(context.Context, *pglock.Lease) error { return nil }))
	if n := pglock.Tracked(c); n != 0 {
		t.Errorf("%d leases are tracked", n)
	}
	f.empty("n", "short")
	if granted, handedOff := len(events[observe.AcquireEvent](seen)), len(events[observe.HandoffEvent](seen)); granted != 4 || handedOff != 1 {
		t.Errorf("the next observer has seen %d of 4 grants, %d of 1 hand-off", granted, handedOff)
	}
}

// TestPanicsOfTheWorkContinue: functions that do the work of a program, or decide about it, panic in the
// call that runs them, after what it held was released.
func TestPanicsOfTheWorkContinue(t *testing.T) {
	t.Parallel()
	type env struct {
		fixture
		*pglock.Client
	}
	boom := func() { panic("boom") }
	handler := func(e env, scope func(*http.Request) string, opts ...oncehttp.Option) error {
		h, err := oncehttp.Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { boom() }), e.Client, scope, opts...)
		must(e.t, err)
		r := httptest.NewRequestWithContext(e.t.Context(), http.MethodPost, "/", http.NoBody)
		r.Header.Set(oncehttp.Header, "k")
		h.ServeHTTP(httptest.NewRecorder(), r)
		return nil
	}
	work := func(context.Context, *pglock.Lease) error { boom(); return nil }
	policy := func(f func(t *testing.T, c *pglock.Client) error) func(e env) error {
		return func(e env) error {
			return f(e.t, e.open(pglock.WithNamePolicy(func(string) ([]pglock.LeaseOption, error) { boom(); return nil, nil })))
		}
	}
	for what, call := range map[string]func(e env) error{
		"Do":    func(e env) error { return e.Do(e.t.Context(), "n", work) },
		"TryDo": func(e env) error { return e.Semaphore("s", 2).TryDo(e.t.Context(), work) },
		"All":   func(e env) error { return e.All(e.Lock("n"), e.Writer("m")).Do(e.t.Context(), work) },
		"DoTx": func(e env) error {
			return e.DoTx(e.t.Context(), "n", func(context.Context, pgx.Tx) error { boom(); return nil })
		},
		"WithConn": func(e env) error {
			return e.WithConn(e.t.Context(), func(conn *pgx.Conn) error {
				_, err := conn.Exec(e.t.Context(), "BEGIN")
				check(e.t, err)
				boom()
				return err
			})
		},
		"policy, Acquire": policy(func(t *testing.T, c *pglock.Client) error {
			t.Helper()
			return second(c.Acquire(t.Context(), "n"))
		}),
		"policy, All": policy(func(t *testing.T, c *pglock.Client) error {
			t.Helper()
			return second(c.All(c.Lock("n"), c.Lock("m")).TryAcquire(t.Context()))
		}),
		"policy, Adopt": policy(func(t *testing.T, c *pglock.Client) error {
			t.Helper()
			return second(c.Adopt(t.Context(), pglock.Fence{Schema: c.Schema(), Name: "n", Token: 1}))
		}),
		"Watch": func(e env) error {
			for _, err := range e.Watch(e.t.Context(), "n") {
				boom()
				return err
			}
			return nil
		},
		"Locks": func(e env) error {
			release(e.t, try(e.t, e.Client, "n"))
			for _, err := range e.Locks(e.t.Context(), inspect.Filter{}) {
				boom()
				return err
			}
			return nil
		},
		"leader": func(e env) error {
			return leader.Run(e.t.Context(), e.Client, "n", func(context.Context, *leader.Term) error { boom(); return nil })
		},
		"schedule": func(e env) error {
			j, err := schedule.New(e.Client, "n")
			must(e.t, err)
			return j.Once(e.t.Context(), time.Unix(1, 0), work) // the wall clock may be wrong
		},
		"schedule, report": func(e env) error {
			j, err := schedule.New(e.Client, "n", schedule.WithReport(func(time.Time, error) { boom() }))
			must(e.t, err)
			return j.RunDue(e.t.Context(), schedule.Every(1000*time.Hour), func(context.Context, *pglock.Lease) error { return nil })
		},
		"once": func(e env) error {
			return second(once.Do(e.t.Context(), e.Client, "k", nil, func(context.Context, *pglock.Lease) (int, error) { boom(); return 0, nil }))
		},
		"once, lookup": func(e env) error {
			unknown := errors.New("unknown")
			_, err := once.Do(e.t.Context(), e.Client, "k", nil, func(context.Context, *pglock.Lease) (int, error) { return 0, unknown })
			fails(e.t, "the first call", err, unknown)
			return second(once.Do(e.t.Context(), e.Client, "k", nil, func(context.Context, *pglock.Lease) (int, error) { return 0, nil },
				once.WithLookup(func(context.Context, *pglock.Lease, once.Started) (int, error) { boom(); return 0, nil })))
		},
		"oncehttp":        func(e env) error { return handler(e, oncehttp.OneScope) },
		"oncehttp, scope": func(e env) error { return handler(e, func(*http.Request) string { boom(); return "" }) },
		"oncehttp, key check": func(e env) error {
			return handler(e, oncehttp.OneScope, oncehttp.WithKeyCheck(func(string) error { boom(); return nil }))
		},
		"runner, Guard": func(e env) error {
			return runner.Guard(e.t.Context(), e.Client, "n", func(context.Context) error { boom(); return nil })
		},
		"runner, source": func(e env) error {
			files := runner.Files(fstest.MapFS{"1_a.up.sql": {Data: []byte("SELECT 1")}}, ".")
			return runner.Run(e.t.Context(), func() (source.Driver, error) {
				d, err := files()
				return badSource{d}, err
			}, e.pool, runner.WithLease(e.Client), runner.WithVersionTable(e.schema, "versions"))
		},
		"runner, tracer": func(e env) error { // under the lock
			pool := pgtest.Pool(e.t, func(c *pgxpool.Config) { c.ConnConfig.Tracer = badTracer{} })
			return runner.Run(e.t.Context(), runner.Files(fstest.MapFS{"1_a.up.sql": {Data: []byte("SELECT 1")}}, "."), pool,
				runner.WithLease(e.Client), runner.WithVersionTable(e.schema, "versions"))
		},
		"migrations, report": func(e env) error {
			return migrations.Up(e.t.Context(), e.pool, migrations.WithSchema(e.schema+"2"), migrations.WithReport(func(int, int) { boom() }))
		},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			f := newApp(t)
			e := env(f)
			caught := func() (v any) {
				defer func() { v = recover() }()
				check(t, call(e))
				return nil
			}()
			if caught != "boom" {
				t.Errorf("recovered %v", caught)
			}
			if n := pglock.Tracked(e.Client); n != 0 {
				t.Errorf("%d leases are tracked", n)
			}
			f.none("locks are held", "SELECT count(*) FROM pglock.distributed_locks WHERE holder IS NOT NULL AND expires_at > clock_timestamp()")
			pgtest.Eventually(t, "each connection is back in the pool", func() bool { return f.pool.Stat().AcquiredConns() == 0 })
			check(t, e.Do(t.Context(), "n", func(context.Context, *pglock.Lease) error { return nil }))
		})
	}
}

// badTracer panics when a migration is recorded.
type badTracer struct{}

func (badTracer) TraceQueryStart(ctx context.Context, _ *pgx.Conn, d pgx.TraceQueryStartData) context.Context {
	if strings.HasPrefix(d.SQL, "INSERT ") && strings.Contains(d.SQL, "versions_files") {
		panic("boom")
	}
	return ctx
}
func (badTracer) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// badSource has migrations that can't be read.
type badSource struct{ source.Driver }

func (badSource) ReadUp(uint) (r io.ReadCloser, identifier string, err error) { panic("boom") }
