package oncehttp_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/internal/schema"
	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/once"
	"github.com/pglock/pglock-go/pglock/once/oncehttp"
)

// FuzzIdempotencyKey sends a request twice with a key. Both kinds of handlers run it once and repeat
// the response, or refuse the key. The key is stored byte for byte, with the scope before it.
func FuzzIdempotencyKey(f *testing.F) {
	for _, key := range []string{
		"k", "", `""`, `"k"`, `"`, `"a"b"`, "'", `\`, "$1", "%s", "a b", " a", "a ", "a\nb", "a\x00b", "\xff", "\xc3\x28", "漢字", "\u202e", "a,b", "k;q=1", "'; DROP TABLE once_keys; --",
		"../x", "a/b", "%2F", "8e03978e-40d5-43dd-bc93-6894a57f9324", strings.Repeat("x", 507), strings.Repeat("x", 508), strings.Repeat("x", 511), strings.Repeat("x", 512), strings.Repeat("x", 513), strings.Repeat("é", 256),
	} {
		for kind := range uint8(4) {
			f.Add(kind, key)
		}
	}
	admin := pgtest.Pool(f)
	name := pgtest.Schema(f, admin)
	user := pgtest.UserPool(f, admin, name)
	client, err := pglock.Open(context.Background(), user, pglock.WithSchema(name), pglock.WithLogger(nil))
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := client.Close(ctx); err != nil {
			f.Error(err)
		}
	})
	handlers, calls := keyHandlers(f, user, client, name)
	total := 0
	f.Fuzz(func(t *testing.T, kind uint8, key string) {
		h, scope := handlers[kind%4], "/"
		if kind%4 >= 2 {
			scope = "a%2Fb/"
		}
		value := key
		if n := len(key); n >= 2 && key[0] == '"' && key[n-1] == '"' && !strings.Contains(key[1:n-1], `"`) {
			value = key[1 : n-1]
		}
		stored := scope + value
		valid := value != "" && len(stored) <= once.MaxKey && utf8.ValidString(stored) && !strings.ContainsRune(stored, 0)
		calls.Store(0)
		first, second := send(h, key), send(h, key)
		if !valid {
			for _, w := range []*httptest.ResponseRecorder{first, second} {
				var body struct{ Error string }
				if err := json.Unmarshal(w.Body.Bytes(), &body); w.Code != http.StatusBadRequest || err != nil || body.Error != "invalid_key" || calls.Load() > 0 {
					t.Fatalf("key %q: %d %s, %d calls", key, w.Code, w.Body, calls.Load())
				}
			}
			return
		}
		if first.Code != http.StatusCreated || second.Code != http.StatusCreated || first.Body.String() != second.Body.String() || calls.Load() != 1 ||
			first.Header().Get(oncehttp.ReplayedHeader) != "" || second.Header().Get(oncehttp.ReplayedHeader) != "true" {
			t.Fatalf("key %q: %d %s, then %d %s, %d calls", key, first.Code, first.Body, second.Code, second.Body, calls.Load())
		}
		var rows int
		if err := admin.QueryRow(t.Context(), schema.Render("WITH d AS (DELETE FROM pglock.once_keys WHERE key = $1 RETURNING 1) SELECT count(*) FROM d", name), stored).Scan(&rows); err != nil || rows != 1 {
			t.Fatalf("key %q: %d rows with the key %q, %v", key, rows, stored, err)
		}
		if total++; total%500 == 0 {
			if _, err := client.Prune(t.Context(), 0); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// keyHandlers returns a Handler and a TxHandler, and both with a scope. calls counts the calls of what
// they protect.
func keyHandlers(f *testing.F, user *pgxpool.Pool, client *pglock.Client, name string) (handlers []http.Handler, calls *atomic.Int32) {
	f.Helper()
	calls = &atomic.Int32{}
	var serial atomic.Int64
	next := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		calls.Add(1)
		w.WriteHeader(http.StatusCreated)
		fmt.Fprintf(w, "%d", serial.Add(1))
	})
	for _, scoped := range []bool{false, true} {
		opts, scope := []oncehttp.Option{oncehttp.WithLogger(nil), oncehttp.RequireKey()}, oncehttp.OneScope
		if scoped {
			scope = func(*http.Request) string { return "a/b" }
		}
		plain, err := oncehttp.Handler(next, client, scope, opts...)
		if err != nil {
			f.Fatal(err)
		}
		tx, err := oncehttp.TxHandler(next, user, scope, append(opts, oncehttp.WithTx(once.WithSchema(name)))...)
		if err != nil {
			f.Fatal(err)
		}
		handlers = append(handlers, plain, tx)
	}
	return handlers, calls
}

// send sends a request with that key.
func send(h http.Handler, key string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodPost, "/", strings.NewReader("body"))
	r.Header[oncehttp.Header] = []string{key}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}
