package ui_test

import (
	"cmp"
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/internal/locktest"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/internal/schema"
	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/ui"
)

// fixture is a schema with a client of a user without other rights.
type fixture struct {
	t      *testing.T
	admin  *pgxpool.Pool
	pool   *pgxpool.Pool
	schema string
	client *pglock.Client
}

func newFixture(t *testing.T) fixture {
	t.Helper()
	admin := pgtest.Pool(t)
	name := pgtest.Schema(t, admin)
	f := fixture{t: t, admin: admin, pool: pgtest.UserPool(t, admin, name), schema: name}
	f.client = f.open()
	return f
}

// open returns another client.
func (f fixture) open(opts ...pglock.Option) *pglock.Client {
	f.t.Helper()
	return locktest.ClientOn(f.t, f.pool, append([]pglock.Option{pglock.WithSchema(f.schema), pglock.WithLogger(nil)}, opts...)...)
}

// sql runs a statement, written for the default schema.
func (f fixture) sql(statement string, args ...any) {
	f.t.Helper()
	locktest.Exec(f.t, f.admin, schema.Render(statement, f.schema), args...)
}

func (f fixture) try(l pglock.Lock, opts ...pglock.LeaseOption) *pglock.Lease {
	f.t.Helper()
	lease, err := l.TryAcquire(f.t.Context(), opts...)
	locktest.OK(f.t, err)
	return lease
}

// waits begins to acquire a lock, and returns when it waits. The end of the test ends the wait.
func (f fixture) waits(c *pglock.Client, l pglock.Lock) {
	f.t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		if lease, err := l.Acquire(f.t.Context()); err == nil {
			_ = lease.Release(context.Background())
		}
	}()
	f.t.Cleanup(func() { locktest.Receive(f.t, done) })
	pgtest.Eventually(f.t, "the client waits", func() bool {
		k, err := c.Get(f.t.Context(), l.Name())
		return err == nil && len(k.Waiters) > 0
	})
}

// handler returns a handler that logs nothing, with an access, both of which the options can replace.
func (f fixture) handler(access ui.Access, opts ...ui.Options) http.Handler {
	f.t.Helper()
	o := append(opts, ui.Options{})[0]
	o.Logger = cmp.Or(o.Logger, slog.New(slog.DiscardHandler))
	if o.Authorize == nil {
		o.Authorize = allow(access)
	}
	h, err := ui.Handler(f.client, o)
	locktest.OK(f.t, err)
	ui.BePatient(h)
	return h
}

func allow(access ui.Access) func(*http.Request) ui.Access {
	return func(*http.Request) ui.Access { return access }
}

// get returns the answer to a GET.
func get(t *testing.T, h http.Handler, path string) (int, string) {
	t.Helper()
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
	return w.Code, w.Body.String()
}

// see returns a page.
func see(t *testing.T, h http.Handler, path string) string {
	t.Helper()
	code, body := get(t, h, path)
	if code != http.StatusOK {
		t.Fatalf("%s: %d, %s", path, code, body)
	}
	return body
}

// lockPath returns the address of the page of a lock, or of an action on it.
func lockPath(page, name string) string { return page + "?" + url.Values{"name": {name}}.Encode() }

// post sends a form, as a browser does from the page itself.
func post(h http.Handler, path string, form url.Values, headers ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodPost, path, strings.NewReader(form.Encode()))
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	r.Header.Set("Sec-Fetch-Site", "same-origin")
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
		if headers[i+1] == "" {
			r.Header.Del(headers[i])
		}
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

// revocation returns the form that revokes a grant.
func revocation(l *pglock.Lease, reason string) url.Values {
	return url.Values{"token": {strconv.FormatInt(int64(l.Token()), 10)}, "reason": {cmp.Or(reason, "a test")}, "confirm": {l.Name()}}
}

func contains(t *testing.T, what, body string, texts ...string) {
	t.Helper()
	for _, text := range texts {
		if !strings.Contains(body, text) {
			t.Errorf("%s has no %q:\n%s", what, text, body)
		}
	}
}

func lacks(t *testing.T, what, body string, texts ...string) {
	t.Helper()
	for _, text := range texts {
		if strings.Contains(body, text) {
			t.Errorf("%s has %q:\n%s", what, text, body)
		}
	}
}
