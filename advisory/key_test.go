package advisory_test

import (
	"encoding/json"
	"math"
	"os"
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
	ok(t, err)
	var vectors []struct {
		Namespace, Name string
		Key             int64 `json:",string"`
	}
	ok(t, json.Unmarshal(text, &vectors))
	if len(vectors) != 50 {
		t.Fatalf("%d vectors", len(vectors))
	}
	pool := pgtest.Pool(t)
	function := schema.Render("SELECT pglock.advisory_key($1, $2)", pgtest.Schema(t, pool))
	seen := map[int64]bool{}
	for _, v := range vectors {
		if id := advisory.NewKey(v.Namespace, v.Name).Int64(); id != v.Key {
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

// TestKeyPgLocks: PgLocks finds the row of a key in pg_locks, and pg_advisory_lock of other programs
// locks the same.
func TestKeyPgLocks(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	for _, key := range []advisory.Key{
		advisory.NewKey("pg_locks", t.Name()), advisory.KeyFromInt64(0), advisory.KeyFromInt64(-1),
		advisory.KeyFromInt64(math.MinInt64), advisory.KeyFromInt64(math.MaxInt64), advisory.KeyFromInt64(1 << 40), {},
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
		var theirs bool
		if err := pool.QueryRow(t.Context(), "SELECT pg_try_advisory_xact_lock"+key.String()).Scan(&theirs); err != nil || theirs {
			t.Errorf("%v: another program was granted it: %v", key, err)
		}
		ok(t, tx.Rollback(t.Context()))
	}
}
