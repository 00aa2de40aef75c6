package rowlock_test

import (
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/pglock/pglock-go/advisory"
	"github.com/pglock/pglock-go/pglock/rowlock"
)

func TestClaimDistributesAQueue(t *testing.T) {
	t.Parallel()
	bothWays(t, func(t *testing.T, f fixture, begin func() advisory.Tx) {
		t.Helper()
		first, second, third := begin(), begin(), begin()
		claim := func(tx advisory.Tx, rest string, args ...any) string {
			t.Helper()
			got, err := f.claim(t.Context(), tx, rest, args...)
			if err != nil {
				t.Error(err)
			}
			return got
		}
		if got := claim(first, `ORDER BY "the sku" LIMIT $1 -- the first`, 2); got != "ab" {
			t.Errorf("first: %q", got)
		}
		if got := claim(second, `WHERE "the sku" <> $2 ORDER BY "the sku" DESC LIMIT $1 ; `, 2, "d"); got != "ec" {
			t.Errorf("second: %q", got)
		}
		if got := claim(third, "FOR UPDATE"); got != "d" {
			t.Errorf("third: %q", got)
		}
		if got := claim(begin(), ""); got != "" {
			t.Errorf("an empty queue: %q", got)
		}
		f.in(first, `DELETE FROM STOCK WHERE "the sku" = ANY ($1)`, []string{"a", "b"})
		ok(t, first.Commit(t.Context()))
		ok(t, second.Rollback(t.Context()))
		if got := claim(begin(), `ORDER BY "the sku"`); got != "ce" {
			t.Errorf("after a commit and a rollback: %q", got)
		}
	})
}

// TestClaimLocksTheQueueAlone, not the tables that the SELECT joins. It refuses a queue that is a WITH
// query or a function, for which the server would otherwise return rows without locking them.
func TestClaimLocksTheQueueAlone(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	join := f.named(`SELECT s."the sku" FROM STOCK AS s JOIN STOCK AS o ON o."the sku" = chr(ascii(s."the sku") + 1) WHERE s."the sku" = $1`)
	for _, key := range []string{"a", "b"} { // the second row is joined to the first
		rows, err := rowlock.Claim(t.Context(), f.begin(), pgx.RowTo[string], "s", join, key)
		if err != nil || len(rows) != 1 {
			t.Errorf("%v %v", rows, err)
		}
	}
	tx := f.begin()
	for _, sql := range []string{"WITH q AS (SELECT * FROM STOCK) SELECT \"the sku\" FROM q", "SELECT q FROM unnest('{a}'::text[]) q", "SELECT \"the sku\" FROM STOCK AS s"} {
		if rows, err := rowlock.Claim(t.Context(), tx, pgx.RowTo[string], "q", f.named(sql)); err == nil {
			t.Errorf("%s: %v", sql, rows)
		}
	}
	if rows, err := f.claim(t.Context(), tx, `WHERE "the sku" > 'b'`); err != nil || rows != "cde" {
		t.Errorf("after them: %v %v", rows, err)
	}
}
