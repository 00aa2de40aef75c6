package oncehttp_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/fencing/fencehttp"
	"github.com/pglock/pglock-go/internal/errs"
	"github.com/pglock/pglock-go/internal/locktest"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/internal/schema"
	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/once"
	"github.com/pglock/pglock-go/pglock/once/oncehttp"
)

// TestRepeatedRequest gets the first response, and another request with the key is refused.
func TestRepeatedRequest(t *testing.T) {
	t.Parallel()
	for kind, build := range handlers {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			h := build(f, func(w http.ResponseWriter, r *http.Request) {
				body, err := io.ReadAll(r.Body)
				if err != nil || string(body) != "body" && string(body) != "other" {
					t.Errorf("the handler read %q, %v", body, err)
				}
				w.Header().Set("Location", "/orders/1")
				w.Header().Set("Set-Cookie", "secret")
				f.number(w, r)
				w.Header().Set("ETag", "too late")
			})
			first := post(h, "k", "/orders?a=1", "body")
			want(t, "first", first, http.StatusCreated, "call 1", false)
			if first.Header().Get("Set-Cookie") == "" || first.Header().Get("ETag") != "" {
				t.Errorf("headers of the first response: %v", first.Header())
			}
			for what, key := range map[string]string{"again": "k", "quoted": `"k"`} {
				again := post(h, key, "/orders?a=1", "body")
				want(t, what, again, http.StatusCreated, "call 1", true)
				if again.Header().Get("Location") != "/orders/1" || again.Header().Get("Set-Cookie") != "" || again.Header().Get("Content-Type") != first.Header().Get("Content-Type") {
					t.Errorf("%s: headers %v", what, again.Header())
				}
			}
			wantRefusal(t, "another body", post(h, "k", "/orders?a=1", "other"), http.StatusUnprocessableEntity, "mismatch")
			wantRefusal(t, "another path", post(h, "k", "/order?a=1", "body"), http.StatusUnprocessableEntity, "mismatch")
			wantRefusal(t, "another query", post(h, "k", "/orders?a=2", "body"), http.StatusUnprocessableEntity, "mismatch")
			wantRefusal(t, "another method", send(h, http.MethodPatch, "k", "/orders?a=1", "body"), http.StatusUnprocessableEntity, "mismatch")
			want(t, "another key", post(h, "l", "/orders?a=1", "other"), http.StatusCreated, "call 2", false)
			if kind == "TxHandler" && f.orders() != 2 {
				t.Errorf("%d orders", f.orders())
			}
		})
	}
}

func TestRequestsWithoutKeyAndBadKeys(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	h := f.handler(f.number)
	want(t, "without a key", post(h, "", "/", ""), http.StatusCreated, "call 1", false)
	want(t, "without a key, again", post(h, "", "/", ""), http.StatusCreated, "call 2", false)
	required := f.handler(f.number, oncehttp.RequireKey(), oncehttp.WithMaxBody(4))
	wantRefusal(t, "required", post(required, "", "/", ""), http.StatusBadRequest, "missing_key")
	for _, key := range []string{`""`, strings.Repeat("k", errs.MaxName), "\xff"} { // with the scope, the second one is too long
		wantRefusal(t, key, post(required, key, "/", ""), http.StatusBadRequest, "invalid_key")
	}
	want(t, "control: the longest key", post(required, strings.Repeat("k", errs.MaxName-1), "/", "1234"), http.StatusCreated, "call 3", false)
	wantRefusal(t, "a body that is too large", post(required, "k", "/", "12345"), http.StatusRequestEntityTooLarge, "body_too_large")
	r := httptest.NewRequest(http.MethodPost, "/", nil)
	r.Header[oncehttp.Header] = []string{"a", "b"}
	wantRefusal(t, "two keys", serve(required, r), http.StatusBadRequest, "invalid_key")
	r = httptest.NewRequest(http.MethodPost, "/", io.MultiReader(strings.NewReader("12"), failingReader{}))
	r.Header.Set(oncehttp.Header, "k")
	wantRefusal(t, "a body that breaks off", serve(required, r), http.StatusBadRequest, "invalid_body")
	for i := range 2 {
		want(t, "a safe method", send(required, http.MethodGet, "get", "/", ""), http.StatusCreated, fmt.Sprintf("call %d", 4+i), false)
	}
	for _, replayed := range []bool{false, true} {
		want(t, "another method", send(required, http.MethodPut, "put", "/", ""), http.StatusCreated, "call 6", replayed)
	}
}

type failingReader struct{}

func (failingReader) Read([]byte) (int, error) { return 0, errors.New("broken") }

// TestScopes: equal keys of two accounts are two keys. In the control, with one scope for all, an account
// gets the response to the request of another one.
func TestScopes(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	as := func(h http.Handler, account, key string) *httptest.ResponseRecorder {
		r := httptest.NewRequest(http.MethodPost, "/", nil)
		r.Header.Set("Account", account)
		r.Header.Set(oncehttp.Header, key)
		return serve(h, r)
	}
	h := f.scoped(func(r *http.Request) string { return r.Header.Get("Account") }, f.number)
	want(t, "a", as(h, "a", "k"), http.StatusCreated, "call 1", false)
	want(t, "b", as(h, "b", "k"), http.StatusCreated, "call 2", false)
	want(t, "nobody", as(h, "", "k"), http.StatusCreated, "call 3", false)
	want(t, "a again", as(h, "a", "k"), http.StatusCreated, "call 1", true)
	want(t, "a slash", as(h, "a", "x/k"), http.StatusCreated, "call 4", false)
	want(t, "the same text", as(h, "a/x", "k"), http.StatusCreated, "call 5", false)
	control := f.handler(f.number)
	want(t, "control: a", as(control, "a", "l"), http.StatusCreated, "call 6", false)
	want(t, "control: b", as(control, "b", "l"), http.StatusCreated, "call 6", true)
}

// TestInProgress: a second request is answered with 409, or waits for the first one's response.
func TestInProgress(t *testing.T) {
	t.Parallel()
	for kind, build := range handlers {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			inside, leave := make(chan bool), make(chan bool)
			next := func(w http.ResponseWriter, r *http.Request) {
				close(inside)
				<-leave
				f.number(w, r)
			}
			h := build(f, next)
			wait := oncehttp.WithDo(once.WithWait(time.Minute))
			if kind == "TxHandler" {
				wait = oncehttp.WithTx(once.WithWait(time.Minute))
			}
			waits := build(f, next, wait)
			ended := make(chan *httptest.ResponseRecorder, 2)
			go func() { ended <- post(h, "k", "/", "") }()
			<-inside
			wantRefusal(t, "meanwhile", post(h, "k", "/", ""), http.StatusConflict, "in_progress")
			go func() { ended <- post(waits, "k", "/", "") }()
			close(leave)
			a, b := locktest.Receive(t, ended), locktest.Receive(t, ended)
			if a.Body.String() != "call 1" || b.Body.String() != "call 1" || f.calls.Load() != 1 {
				t.Errorf("%q and %q", a.Body, b.Body)
			}
		})
	}
}

// TestPanics: with Handler the outcome is unknown, and WithLookup resolves it. With TxHandler nothing
// happened.
func TestPanics(t *testing.T) {
	t.Parallel()
	for kind, build := range handlers {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			next := func(w http.ResponseWriter, r *http.Request) {
				if f.calls.Load() == 1 {
					_, _ = w.Write([]byte("half"))
					panic(http.ErrAbortHandler)
				}
				f.number(w, r)
			}
			h := build(f, next)
			func() {
				w := httptest.NewRecorder()
				defer func() {
					if r := recover(); r != http.ErrAbortHandler || w.Body.Len() > 0 { //nolint:errorlint // it is not wrapped
						t.Errorf("the panic became %v, after %q", r, w.Body)
					}
				}()
				r := httptest.NewRequest(http.MethodPost, "/", nil)
				r.Header.Set(oncehttp.Header, "k")
				h.ServeHTTP(w, r)
			}()
			if kind == "TxHandler" {
				want(t, "again", post(h, "k", "/", ""), http.StatusCreated, "call 2", false)
				if f.orders() != 1 {
					t.Errorf("%d orders", f.orders())
				}
				return
			}
			wantRefusal(t, "again", post(h, "k", "/", ""), http.StatusInternalServerError, "outcome_unknown")
			status := 1000
			lookups := f.handler(next, oncehttp.WithLookup(func(_ context.Context, r *http.Request, s once.Started) (oncehttp.Response, error) {
				if s.Key != "/k" || r.URL.Path != "/" {
					t.Errorf("asked about %+v, %v", s, r.URL)
				}
				return oncehttp.Response{Status: status, Body: []byte("found")}, nil
			}))
			wantRefusal(t, "asked, with a status that can't be sent", post(lookups, "k", "/", ""), http.StatusInternalServerError, "outcome_unknown")
			status = 0 // means 200
			want(t, "asked", post(lookups, "k", "/", ""), http.StatusOK, "found", true)
			want(t, "once asked", post(h, "k", "/", ""), http.StatusOK, "found", true)
		})
	}
}

// TestStatuses: which responses are recorded. A status at which net/http panics becomes 500, at the
// first request and at each replay.
func TestStatuses(t *testing.T) {
	t.Parallel()
	for kind, build := range handlers {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			h := build(f, func(w http.ResponseWriter, r *http.Request) {
				var status int
				_, _ = fmt.Sscanf(r.URL.Path, "/%d", &status)
				w.WriteHeader(http.StatusEarlyHints) // is ignored
				w.WriteHeader(status)
				fmt.Fprintf(w, "call %d", f.calls.Load())
			}, oncehttp.WithNotDone(http.StatusTooManyRequests))
			kept := 0
			for status, test := range map[int]struct {
				sent     int
				recorded bool
			}{
				200: {200, true}, 402: {402, true}, 429: {429, false}, 500: {500, kind == "Handler"},
				999: {999, kind == "Handler"}, 1000: {500, kind == "Handler"}, -1: {200, true},
			} {
				path := fmt.Sprintf("/%d", status)
				first := post(h, path, path, "")
				again := post(h, path, path, "")
				if first.Code != test.sent || again.Code != test.sent || (first.Body.String() == again.Body.String()) != test.recorded {
					t.Errorf("%d: %d %q, then %d %q, want %+v", status, first.Code, first.Body, again.Code, again.Body, test)
				}
				if test.recorded {
					kept++
				}
			}
			if kind == "TxHandler" && f.orders() != kept {
				t.Errorf("%d orders, want %d", f.orders(), kept)
			}
		})
	}
}

// TestInvalidRecords are answered with 500, and the requests after it are not affected.
func TestInvalidRecords(t *testing.T) {
	t.Parallel()
	for kind, build := range handlers {
		f := newFixture(t)
		h := build(f, f.number)
		store := "UPDATE " + schema.Quote(f.schema) + ".once_keys SET result = $1"
		want(t, kind+", first", post(h, "k", "/", ""), http.StatusCreated, "call 1", false)
		for _, stored := range []string{`{"status":1000}`, `{"status":101}`, `{"status":-1}`, `{}`, `{"status":"200"}`, `damaged`} {
			locktest.Exec(t, f.admin, store, []byte(stored))
			wantRefusal(t, kind+", "+stored, post(h, "k", "/", ""), http.StatusInternalServerError, "invalid_record")
		}
		locktest.Exec(t, f.admin, store, []byte(`{"status":999}`))
		want(t, kind+", control", post(h, "k", "/", ""), 999, "", true)
	}
}

// TestPlantedHeaders: another program has written the row, or WithLookup has found the response.
// Only the headers of WithHeaders are repeated.
func TestPlantedHeaders(t *testing.T) {
	t.Parallel()
	for kind, build := range handlers {
		f := newFixture(t)
		planted := `{"status":200,"header":{"Set-Cookie":["a=b"],"sTRICT-transport-security":["max-age=1"],"Access-Control-Allow-Origin":["*"],"Location":["/1"],"ETag":["x"]}}`
		wantHeaders := func(h http.Handler, allowed string) {
			t.Helper()
			post(h, "k", "/", "")
			locktest.Exec(t, f.admin, "UPDATE "+schema.Quote(f.schema)+".once_keys SET result = $1", []byte(planted))
			w := post(h, "k", "/", "")
			if got := fmt.Sprint(w.Header()); w.Code != http.StatusOK || got != allowed {
				t.Errorf("%s: %d, headers %s, want %s", kind, w.Code, got, allowed)
			}
		}
		wantHeaders(build(f, f.number), "map[ETag:[x] Idempotent-Replayed:[true] Location:[/1]]")
		wantHeaders(build(f, f.number, oncehttp.WithHeaders("set-COOKIE")), "map[Idempotent-Replayed:[true] Set-Cookie:[a=b]]")
	}
}

// TestLargeResponses: Handler sends one to the first client and does not record it. TxHandler rolls
// back.
func TestLargeResponses(t *testing.T) {
	t.Parallel()
	const part = 100 << 10
	for kind, build := range handlers {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			h := build(f, func(w http.ResponseWriter, r *http.Request) {
				var parts int
				_, _ = fmt.Sscanf(r.URL.Path, "/%d", &parts)
				for range parts {
					if n, err := w.Write(bytes.Repeat([]byte("x"), part)); n != part || err != nil {
						t.Errorf("written %d, %v", n, err)
					}
				}
			})
			for _, replayed := range []bool{false, true} {
				want(t, "control: the largest", post(h, "7", "/7", ""), http.StatusOK, strings.Repeat("x", 7*part), replayed)
			}
			first := post(h, "8", "/8", "")
			if kind == "TxHandler" {
				wantRefusal(t, "too large", first, http.StatusInternalServerError, "response_too_large")
				wantRefusal(t, "too large, again", post(h, "8", "/8", ""), http.StatusInternalServerError, "response_too_large")
				if f.calls.Load() != 3 || f.orders() != 1 {
					t.Errorf("%d calls, %d orders", f.calls.Load(), f.orders())
				}
				return
			}
			want(t, "too large", first, http.StatusOK, strings.Repeat("x", 8*part), false)
			wantRefusal(t, "too large, again", post(h, "8", "/8", ""), http.StatusGone, "not_stored")
			if f.calls.Load() != 2 {
				t.Errorf("%d calls", f.calls.Load())
			}
			headers := f.handler(func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Link", strings.Repeat("x", once.MaxResult))
				f.number(w, r)
			})
			want(t, "headers that do not fit", post(headers, "h", "/", ""), http.StatusCreated, "call 3", false)
			wantRefusal(t, "again", post(headers, "h", "/", ""), http.StatusGone, "not_stored")
		})
	}
}

// TestTheClientLeaves: Handler's request goes on, and the client gets its response later. The context
// carries the fence and ends with the lease.
func TestTheClientLeaves(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	leave := make(chan context.CancelFunc, 1)
	h := f.handler(func(w http.ResponseWriter, r *http.Request) {
		(<-leave)()
		if err := r.Context().Err(); err != nil {
			t.Errorf("the handler's context: %v", err)
		}
		if fence, ok := fencehttp.FromContext(r.Context()); !ok || fence.Token == 0 || fence.Name != once.LockName("/k") {
			t.Errorf("the fence is %v", fence)
		}
		f.number(w, r)
	})
	ctx, cancel := context.WithCancel(t.Context())
	leave <- cancel
	r := httptest.NewRequest(http.MethodPost, "/", nil).WithContext(ctx)
	r.Header.Set(oncehttp.Header, "k")
	h.ServeHTTP(httptest.NewRecorder(), r)
	want(t, "again", post(h, "k", "/", ""), http.StatusCreated, "call 1", true)

	lost := f.handler(func(w http.ResponseWriter, r *http.Request) {
		<-r.Context().Done()
		if err := context.Cause(r.Context()); !errors.Is(err, pglock.ErrLost) {
			t.Errorf("the context ended with %v", err)
		}
		f.number(w, r)
	}, oncehttp.WithDo(once.WithLease(pglock.WithTTL(2*time.Second), pglock.WithRenewEvery(0))))
	want(t, "the lease is lost", post(lost, "lost", "/", ""), http.StatusCreated, "call 2", false)
	want(t, "and the response is recorded", post(lost, "lost", "/", ""), http.StatusCreated, "call 2", true)
}

// TestNoDatabase: the request is answered with 503, and the cause is logged and not sent.
func TestNoDatabase(t *testing.T) {
	t.Parallel()
	for kind, build := range handlers {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			records := make(chan slog.Record, 1)
			h := build(f, f.number, oncehttp.WithLogger(slog.New(locktest.Records(records))))
			locktest.Exec(t, f.admin, "REVOKE ALL ON ALL FUNCTIONS IN SCHEMA "+schema.Quote(f.schema)+" FROM "+schema.Quote(pgtest.RoleOf(f.pool)))
			locktest.Exec(t, f.admin, "REVOKE ALL ON ALL TABLES IN SCHEMA "+schema.Quote(f.schema)+" FROM "+schema.Quote(pgtest.RoleOf(f.pool)))
			w := post(h, "k", "/", "")
			wantRefusal(t, "without rights", w, http.StatusServiceUnavailable, "unavailable")
			if err := locktest.Error(locktest.Receive(t, records)); !errors.Is(err, pglock.ErrPrivilege) || strings.Contains(w.Body.String(), "permission") {
				t.Errorf("logged %v, sent %q", err, w.Body)
			}
		})
	}
}

func TestInvalidOptions(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	next := http.NotFoundHandler()
	lookup := oncehttp.WithLookup(func(context.Context, *http.Request, once.Started) (r oncehttp.Response, err error) { return r, nil })
	do := func(next http.Handler, c *pglock.Client, scope func(*http.Request) string, opts ...oncehttp.Option) error {
		_, err := oncehttp.Handler(next, c, scope, opts...)
		return err
	}
	tx := func(next http.Handler, pool *pgxpool.Pool, scope func(*http.Request) string, opts ...oncehttp.Option) error {
		_, err := oncehttp.TxHandler(next, pool, scope, opts...)
		return err
	}
	all := map[string]error{
		"Handler without a handler":   do(nil, f.client, oncehttp.OneScope),
		"Handler without a client":    do(next, nil, oncehttp.OneScope),
		"Handler without a scope":     do(next, f.client, nil),
		"Handler with WithTx":         do(next, f.client, oncehttp.OneScope, oncehttp.WithTx(once.WithWait(1))),
		"TxHandler without a handler": tx(nil, f.pool, oncehttp.OneScope),
		"TxHandler without a pool":    tx(next, nil, oncehttp.OneScope),
		"TxHandler without a scope":   tx(next, f.pool, nil),
		"TxHandler with WithDo":       tx(next, f.pool, oncehttp.OneScope, oncehttp.WithDo(once.WithWait(1))),
		"TxHandler with WithLookup":   tx(next, f.pool, oncehttp.OneScope, lookup),
	}
	for what, o := range map[string]oncehttp.Option{
		"a negative body": oncehttp.WithMaxBody(-1), "no lookup": oncehttp.WithLookup(nil), "no fingerprint": oncehttp.WithFingerprint(nil), "nil": nil,
	} {
		all["Handler, "+what] = do(next, f.client, oncehttp.OneScope, o)
		all["TxHandler, "+what] = tx(next, f.pool, oncehttp.OneScope, o)
	}
	for what, err := range all {
		if !errors.Is(err, pglock.ErrInvalidOption) {
			t.Errorf("%s: %v", what, err)
		}
	}
}
