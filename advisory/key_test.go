package advisory_test

import (
	"encoding/json"
	"errors"
	"math"
	"os"
	"strings"
	"testing"

	"github.com/pglock/pglock-go/advisory"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/internal/schema"
)

// TestP32_KeyVectors: the keys of fifty names are frozen. A program in another language wrote the
// file; the function in the schema must agree too.
func TestP32_KeyVectors(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../testdata/advisory_keys.json")
	if err != nil {
		t.Fatal(err)
	}
	var vectors []struct {
		Namespace, Name string
		Key             int64 `json:",string"`
	}
	if err := json.Unmarshal(text, &vectors); err != nil {
		t.Fatal(err)
	}
	if len(vectors) != 50 {
		t.Fatalf("%d vectors", len(vectors))
	}
	pool := pgtest.Pool(t)
	function := schema.Render("SELECT pglock.advisory_key($1, $2)", pgtest.Schema(t, pool))
	seen := map[int64]bool{}
	for _, v := range vectors {
		if id, ok := advisory.NewKey(v.Namespace, v.Name).Int64(); id != v.Key || !ok {
			t.Errorf("%q, %q: %d, want %d", v.Namespace, v.Name, id, v.Key)
		}
		var id int64
		if err := pool.QueryRow(t.Context(), function, v.Namespace, v.Name).Scan(&id); err != nil || id != v.Key {
			t.Errorf("%q, %q in SQL: %d, %v, want %d", v.Namespace, v.Name, id, err, v.Key)
		}
		if seen[v.Key] {
			t.Errorf("%q, %q has another name's key", v.Namespace, v.Name)
		}
		seen[v.Key] = true
	}
	for _, bad := range [][2]any{{"", "x"}, {"x", ""}, {nil, "x"}, {"x", nil}} {
		var id *int64
		if err := pool.QueryRow(t.Context(), function, bad[0], bad[1]).Scan(&id); err == nil {
			t.Errorf("%v in SQL has the key %v", bad, id)
		}
	}
}

// TestKeyPgLocks: PgLocks finds the row of a key in pg_locks, for numbers and for pairs.
func TestKeyPgLocks(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	for _, key := range []advisory.Key{
		advisory.NewKey("pg_locks", t.Name()), advisory.KeyFromInt64(0), advisory.KeyFromInt64(-1),
		advisory.KeyFromInt64(math.MinInt64), advisory.KeyFromInt64(math.MaxInt64), advisory.KeyFromInt64(1 << 40),
		advisory.KeyFromInt32s(0, 0), advisory.KeyFromInt32s(-1, 1), advisory.KeyFromInt32s(1, -1),
		advisory.KeyFromInt32s(math.MinInt32, math.MaxInt32), {},
	} {
		tx := begin(t, pool)
		if err := advisory.Lock(t.Context(), tx, key); err != nil {
			t.Fatalf("%v: %v", key, err)
		}
		classid, objid, objsubid := key.PgLocks()
		var n int
		if err := tx.QueryRow(t.Context(), `SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND granted
			AND pid = pg_backend_pid() AND classid = $1 AND objid = $2 AND objsubid = $3`, classid, objid, objsubid).Scan(&n); err != nil || n != 1 {
			t.Errorf("%v: %d rows, %v", key, n, err)
		}
		if err := tx.Rollback(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

// TestKeySpacesAreDistinct: a number and a pair with the same bits do not exclude each other,
// and other programs' pg_advisory_lock calls exclude ours.
func TestKeySpacesAreDistinct(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	number, pair := advisory.KeyFromInt64(int64(7)<<32|9), advisory.KeyFromInt32s(7, 9)
	if number == pair {
		t.Error("they are equal")
	}
	one, other := begin(t, pool), begin(t, pool)
	if err := advisory.Lock(t.Context(), one, number); err != nil {
		t.Fatal(err)
	}
	if err := advisory.TryLock(t.Context(), other, pair); err != nil {
		t.Errorf("the pair, while the number is held: %v", err)
	}
	if _, err := begin(t, pool).Exec(t.Context(), "SET LOCAL lock_timeout = '50ms'; SELECT pg_advisory_xact_lock(7, 9)"); err == nil {
		t.Error("another program was granted the pair")
	}
	if a, b, ok := pair.Int32s(); a != 7 || b != 9 || !ok {
		t.Error(a, b, ok)
	}
	if _, _, ok := number.Int32s(); ok {
		t.Error("the number is a pair")
	}
	if _, ok := pair.Int64(); ok {
		t.Error("the pair is a number")
	}
	if number.String() != "(30064771081)" || pair.String() != "(7, 9)" {
		t.Error(number, pair)
	}
}

func TestInvalidKey(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	for _, key := range []advisory.Key{
		advisory.NewKey("", "x"), advisory.NewKey("x", ""), advisory.NewKey("", ""),
		advisory.NewKey("x", "\xff"), advisory.NewKey("\xff", "x"), advisory.NewKey("x", "a\x00b"),
	} {
		tx := begin(t, pool)
		for what, err := range map[string]error{
			"Lock":     advisory.Lock(t.Context(), tx, key),
			"TryLock":  advisory.TryLock(t.Context(), tx, key),
			"LockAll":  advisory.LockAll(t.Context(), tx, []advisory.Key{advisory.NewKey("a", "b"), key}),
			"Do":       advisory.Do(t.Context(), pool, key, noWork),
			"WithKeys": advisory.Do(t.Context(), pool, advisory.NewKey("a", "b"), noWork, advisory.WithKeys(key)),
			"Acquire":  second(advisory.Acquire(t.Context(), pool, key)),
		} {
			if !errors.Is(err, advisory.ErrInvalidKey) || !strings.Contains(err.Error(), "name") {
				t.Errorf("%s: %v", what, err)
			}
		}
		if held(t, tx) != 0 {
			t.Error("something was locked")
		}
	}
}
