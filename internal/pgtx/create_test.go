package pgtx_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglock/pglock-go/internal/pgtx"
)

// stale is a session that remembers until then that there is no such table.
type stale time.Time

func (s stale) Exec(context.Context, string, ...any) (tag pgconn.CommandTag, err error) {
	if time.Now().Before(time.Time(s)) {
		err = &pgconn.PgError{Code: pgtx.UniqueViolation}
	}
	return tag, err
}

// TestCreateBesideASessionThatCommits: an attempt costs no time here, so that only the pauses outlast
// what the session remembers. A name that something else has is an error.
func TestCreateBesideASessionThatCommits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		if err := pgtx.Create(t.Context(), stale(time.Now().Add(100*time.Millisecond)), ""); err != nil {
			t.Errorf("it ends after a tenth of a second: %v", err)
		}
		began := time.Now()
		err := pgtx.Create(t.Context(), stale(time.Now().Add(time.Hour)), "")
		if took := time.Since(began); pgtx.SQLState(err) != pgtx.UniqueViolation || took > time.Second {
			t.Errorf("it does not end: %v after %v", err, took)
		}
	})
}
