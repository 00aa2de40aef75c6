package oncehttp_test

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"strconv"
	"testing"

	"github.com/pglock/pglock-go/internal/locktest"
	"github.com/pglock/pglock-go/pglock/once"
	"github.com/pglock/pglock-go/pglock/once/oncehttp"
)

// TestInvalidStatuses: net/http panics at them. The handler's own becomes 500, at the first request and
// at each replay. A recorded one and that of a WithLookup function are answered with 500, and the
// requests after it are not affected.
func TestInvalidStatuses(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	wide := f.handler(func(w http.ResponseWriter, r *http.Request) {
		status, err := strconv.Atoi(r.URL.Query().Get("status"))
		if err != nil {
			t.Error(err)
		}
		w.WriteHeader(status)
	})
	server := httptest.NewServer(wide) // whose ResponseWriter panics
	t.Cleanup(server.Close)
	for status, sent := range map[string]int{"1000": 500, "999": 999, "-1": 200, "99999": 500} {
		for range 2 {
			r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, server.URL+"/?status="+status, nil)
			if err != nil {
				t.Fatal(err)
			}
			r.Header.Set(oncehttp.Header, "status "+status)
			reply, err := server.Client().Do(r)
			if err != nil {
				t.Errorf("status %s: %v", status, err)
				continue
			}
			if reply.Body.Close() != nil || reply.StatusCode != sent {
				t.Errorf("status %s: %d, want %d", status, reply.StatusCode, sent)
			}
		}
	}
	for kind, build := range handlers {
		f := newFixture(t)
		h := build(f, f.number)
		want(t, kind+", first", post(h, "k", "/", ""), http.StatusCreated, "call 1", false)
		for _, stored := range []string{`{"status":1000}`, `{"status":101}`, `{"status":-1}`, `{}`, `{"status":"200"}`, `damaged`} {
			locktest.Exec(t, f.admin, "UPDATE "+quoted(f.schema)+".once_keys SET result = $1", []byte(stored))
			wantRefusal(t, kind+", "+stored, post(h, "k", "/", ""), http.StatusInternalServerError, "invalid_record")
		}
		locktest.Exec(t, f.admin, "UPDATE "+quoted(f.schema)+".once_keys SET result = $1", []byte(`{"status":999}`))
		want(t, kind+", control", post(h, "k", "/", ""), 999, "", true)
	}
}

// TestInvalidStatusOfALookup: the outcome stays unknown, and the next lookup is asked.
func TestInvalidStatusOfALookup(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	status := 1000
	h := f.handler(func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, oncehttp.WithLookup(
		func(context.Context, *http.Request, once.Started) (oncehttp.Response, error) {
			return oncehttp.Response{Status: status, Body: []byte("found")}, nil
		}))
	func() {
		defer func() { _ = recover() }()
		post(h, "k", "/", "")
	}()
	wantRefusal(t, "1000", post(h, "k", "/", ""), http.StatusInternalServerError, "outcome_unknown")
	status = 0
	want(t, "none", post(h, "k", "/", ""), http.StatusOK, "found", true)
}

// TestKeyCheck: a key that the check refuses does not reach the handler, and its error's text reaches
// the client.
func TestKeyCheck(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	h := f.handler(f.number, oncehttp.WithKeyCheck(func(key string) error {
		if len(key) != 4 {
			return errors.New("a key has four characters")
		}
		return nil
	}))
	w := post(h, `"four "`, "/", "")
	wantRefusal(t, "five", w, http.StatusBadRequest, "invalid_key")
	var body struct{ Detail string }
	if err := json.Unmarshal(w.Body.Bytes(), &body); err != nil || body.Detail != "the key is invalid: a key has four characters" || f.calls.Load() != 0 {
		t.Errorf("%+v, %v, %d calls", body, err, f.calls.Load())
	}
	want(t, "quoted", post(h, `"four"`, "/", ""), http.StatusCreated, "call 1", false)
	want(t, "without a key", post(h, "", "/", ""), http.StatusCreated, "call 2", false)
}

// TestDocumentation: the package's own responses link to the page, each kind to its part of it. Those of
// the handler do not.
func TestDocumentation(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	h := f.handler(f.number, oncehttp.RequireKey(), oncehttp.WithDocumentation("https://example.com/api?a=1#keys"))
	w := post(h, "", "/", "")
	var body struct{ Type, Title string }
	err := json.Unmarshal(w.Body.Bytes(), &body)
	const page = "https://example.com/api?a=1#missing_key"
	if got := w.Header().Get("Link"); err != nil || body.Type != page || body.Title != "Bad Request" || got != `<`+page+`>; rel="describedby"; type="text/html"` {
		t.Errorf("%+v, %v, Link %s", body, err, got)
	}
	if w := post(h, "k", "/", ""); w.Code != http.StatusCreated || w.Header().Get("Link") != "" {
		t.Errorf("the handler's response: %d, Link %s", w.Code, w.Header().Get("Link"))
	}
}
