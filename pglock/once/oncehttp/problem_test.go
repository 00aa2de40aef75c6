package oncehttp_test

import (
	"encoding/json"
	"errors"
	"net/http"
	"testing"

	"github.com/pglock/pglock-go/pglock/once/oncehttp"
)

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
