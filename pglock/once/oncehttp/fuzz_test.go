package oncehttp_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/pglock/pglock-go/internal/errs"
	"github.com/pglock/pglock-go/internal/schema"
	"github.com/pglock/pglock-go/pglock/once/oncehttp"
)

// FuzzIdempotencyKey sends a request twice with a key. Both kinds of handlers run it once and repeat
// the response, or refuse the key. The key is stored byte for byte, with the scope before it.
func FuzzIdempotencyKey(f *testing.F) {
	for _, key := range []string{
		"k", "", `""`, `"k"`, `"`, `"a"b"`, "'", `\`, "$1", "%s", "a b", " a", "a ", "a\nb", "a\x00b", "\xff", "\xc3\x28", "漢字", "\u202e", "a,b", "k;q=1", "'; DROP TABLE once_keys; --",
		"../x", "a/b", "%2F", "8e03978e-40d5-43dd-bc93-6894a57f9324", strings.Repeat("x", 507), strings.Repeat("x", 508), strings.Repeat("x", 511), strings.Repeat("x", 512), strings.Repeat("x", 513), strings.Repeat("é", 256),
	} {
		for kind := range uint8(3) {
			f.Add(kind, key)
		}
	}
	fx := newFixture(f)
	require := oncehttp.RequireKey()
	scope := func(*http.Request) string { return "a/b" }
	handlers := []http.Handler{fx.handler(fx.number, require), fx.txHandler(fx.number, require), fx.scoped(scope, fx.number, require)}
	total := 0
	f.Fuzz(func(t *testing.T, kind uint8, key string) {
		h, scope := handlers[kind%3], "/"
		if kind%3 == 2 {
			scope = "a%2Fb/"
		}
		value := key
		if n := len(key); n >= 2 && key[0] == '"' && key[n-1] == '"' && !strings.Contains(key[1:n-1], `"`) {
			value = key[1 : n-1]
		}
		stored := scope + value
		valid := value != "" && len(stored) <= errs.MaxName && utf8.ValidString(stored) && !strings.ContainsRune(stored, 0)
		fx.calls.Store(0)
		request := httptest.NewRequest(http.MethodPost, "/", nil)
		request.Header[oncehttp.Header] = []string{key}
		first, second := serve(h, request), serve(h, request)
		if !valid {
			for _, w := range []*httptest.ResponseRecorder{first, second} {
				var body struct{ Error string }
				if err := json.Unmarshal(w.Body.Bytes(), &body); w.Code != http.StatusBadRequest || err != nil || body.Error != "invalid_key" || fx.calls.Load() > 0 {
					t.Fatalf("key %q: %d %s, %d calls", key, w.Code, w.Body, fx.calls.Load())
				}
			}
			return
		}
		if first.Code != http.StatusCreated || second.Code != http.StatusCreated || first.Body.String() != second.Body.String() || fx.calls.Load() != 1 ||
			first.Header().Get(oncehttp.ReplayedHeader) != "" || second.Header().Get(oncehttp.ReplayedHeader) != "true" {
			t.Fatalf("key %q: %d %s, then %d %s, %d calls", key, first.Code, first.Body, second.Code, second.Body, fx.calls.Load())
		}
		var rows int
		if err := fx.admin.QueryRow(t.Context(), schema.Render("WITH d AS (DELETE FROM pglock.once_keys WHERE key = $1 RETURNING 1) SELECT count(*) FROM d", fx.schema), stored).Scan(&rows); err != nil || rows != 1 {
			t.Fatalf("key %q: %d rows with the key %q, %v", key, rows, stored, err)
		}
		if total++; total%500 == 0 {
			if _, err := fx.client.Prune(t.Context(), 0); err != nil {
				t.Fatal(err)
			}
		}
	})
}
