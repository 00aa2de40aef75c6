package oncehttp_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/internal/locktest"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/once"
	"github.com/pglock/pglock-go/pglock/once/oncehttp"
)

// fixture is a schema with a table of orders, and a client as a user without other rights.
type fixture struct {
	t      testing.TB
	admin  *pgxpool.Pool
	pool   *pgxpool.Pool
	schema string
	client *pglock.Client
	calls  *atomic.Int32 // of the handler
}

func newFixture(tb testing.TB) fixture {
	tb.Helper()
	admin := pgtest.Pool(tb)
	name := pgtest.Schema(tb, admin)
	f := fixture{t: tb, admin: admin, pool: pgtest.UserPool(tb, admin, name), schema: name, calls: &atomic.Int32{}}
	locktest.Exec(tb, admin, "CREATE TABLE "+f.table()+" (id bigint GENERATED ALWAYS AS IDENTITY)")
	locktest.Exec(tb, admin, "GRANT SELECT, INSERT ON "+f.table()+" TO "+pgx.Identifier{pgtest.RoleOf(f.pool)}.Sanitize())
	f.client = locktest.ClientOn(tb, f.pool, pglock.WithSchema(name), pglock.WithLogger(nil))
	return f
}

func (f fixture) table() string { return pgx.Identifier{f.schema, "orders"}.Sanitize() }

func (f fixture) orders() int {
	f.t.Helper()
	return locktest.Scan[int](f.t, f.admin, "SELECT count(*) FROM "+f.table())
}

// handler returns a Handler that counts calls of next.
func (f fixture) handler(next http.HandlerFunc, opts ...oncehttp.Option) http.Handler {
	f.t.Helper()
	return f.scoped(oncehttp.OneScope, next, opts...)
}

func (f fixture) scoped(scope func(*http.Request) string, next http.HandlerFunc, opts ...oncehttp.Option) http.Handler {
	f.t.Helper()
	h, err := oncehttp.Handler(f.counted(next), f.client, scope, append([]oncehttp.Option{oncehttp.WithLogger(nil)}, opts...)...)
	if err != nil {
		f.t.Fatal(err)
	}
	return h
}

// txHandler returns a TxHandler whose next inserts an order and then calls the given one.
func (f fixture) txHandler(next http.HandlerFunc, opts ...oncehttp.Option) http.Handler {
	f.t.Helper()
	h, err := oncehttp.TxHandler(f.counted(func(w http.ResponseWriter, r *http.Request) {
		tx, ok := oncehttp.TxFromContext(r.Context())
		if !ok {
			f.t.Error("no transaction")
			return
		}
		if _, err := tx.Exec(r.Context(), "INSERT INTO "+f.table()+" DEFAULT VALUES"); err != nil {
			f.t.Error(err)
		}
		next(w, r)
	}), f.pool, oncehttp.OneScope, append([]oncehttp.Option{oncehttp.WithLogger(nil), oncehttp.WithTx(once.WithSchema(f.schema))}, opts...)...)
	if err != nil {
		f.t.Fatal(err)
	}
	return h
}

func (f fixture) counted(next http.HandlerFunc) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		f.calls.Add(1)
		next(w, r)
	})
}

// handlers are both kinds.
var handlers = map[string]func(f fixture, next http.HandlerFunc, opts ...oncehttp.Option) http.Handler{
	"Handler":   fixture.handler,
	"TxHandler": fixture.txHandler,
}

// number answers with the number of the call.
func (f fixture) number(w http.ResponseWriter, _ *http.Request) {
	w.WriteHeader(http.StatusCreated)
	fmt.Fprintf(w, "call %d", f.calls.Load())
}

// post sends a POST request with a key, or without one if it is empty.
func post(h http.Handler, key, path, body string) *httptest.ResponseRecorder {
	return send(h, http.MethodPost, key, path, body)
}

func send(h http.Handler, method, key, path, body string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, path, strings.NewReader(body))
	if key != "" {
		r.Header.Set(oncehttp.Header, key)
	}
	return serve(h, r)
}

func serve(h http.Handler, r *http.Request) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

// want fails the test unless the response has that status and body.
func want(t *testing.T, what string, w *httptest.ResponseRecorder, status int, body string, replayed bool) {
	t.Helper()
	if w.Code != status || w.Body.String() != body || w.Header().Get(oncehttp.ReplayedHeader) == "true" != replayed {
		t.Errorf("%s: %d %.200q, replayed %q, want %d %.200q, %v", what, w.Code, w.Body, w.Header().Get(oncehttp.ReplayedHeader), status, body, replayed)
	}
}

// wantRefusal fails the test unless the package itself has answered, with that kind of error.
func wantRefusal(t *testing.T, what string, w *httptest.ResponseRecorder, status int, kind string) {
	t.Helper()
	var body struct {
		Title, Detail, Error string
		Status               int
	}
	err := json.Unmarshal(w.Body.Bytes(), &body)
	again := status == http.StatusConflict || status == http.StatusServiceUnavailable
	if w.Code != status || err != nil || body.Error != kind || body.Status != status || body.Title == "" || body.Detail == "" ||
		w.Header().Get("Content-Type") != "application/problem+json" || (w.Header().Get("Retry-After") != "") != again {
		t.Errorf("%s: %d %.200q, %v, want %d %s", what, w.Code, w.Body, err, status, kind)
	}
}
