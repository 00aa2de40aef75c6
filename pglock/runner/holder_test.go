package runner_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/internal/locktest"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/pglock/runner"
)

// TestHolderIsReadTwiceIfItIsNew: one statement reads pg_locks and pg_stat_activity one after the
// other, so a session that was granted the lock in between is in one of them only, or still has its
// old name. The waiter reads again. A view stands in for pg_stat_activity, and shows the old state
// at the first read.
func TestHolderIsReadTwiceIfItIsNew(t *testing.T) {
	t.Parallel()
	for name, view := range map[string]string{
		"not there yet": "SELECT * FROM pg_catalog.pg_stat_activity WHERE (SELECT nextval('shadow.looks')) > 1",
		"no name yet":   "SELECT pid, CASE WHEN (SELECT nextval('shadow.looks')) > 1 THEN application_name ELSE '' END AS application_name FROM pg_catalog.pg_stat_activity",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url, pool, note, g := newDatabase(t)
			src := source(g.SQL() + note(1))
			busy := make(chan error, 1)
			go func() { busy <- runner.Run(t.Context(), src, pool, runner.WithHolder("replica x")) }()
			g.Reached()
			locktest.Exec(t, pool, "CREATE SCHEMA shadow")
			locktest.Exec(t, pool, "CREATE SEQUENCE shadow.looks")
			locktest.Exec(t, pool, "CREATE VIEW shadow.pg_stat_activity AS "+view)
			shadowed := pgtest.PoolOn(t, url, func(c *pgxpool.Config) {
				c.ConnConfig.RuntimeParams["search_path"] = "shadow, pg_catalog, public"
			})
			err := runner.Run(t.Context(), src, shadowed, runner.WithVersionTable("public", "schema_migrations"), runner.WithTimeout(500*time.Millisecond))
			var held *runner.WaitError
			if !errors.As(err, &held) || !strings.HasPrefix(held.Holder, "replica x (") {
				t.Errorf("the waiter's error: %v", err)
			}
			if looks := locktest.Scan[int](t, pool, "SELECT last_value FROM shadow.looks"); looks != 2 {
				t.Errorf("the view was read %d times", looks)
			}
			g.Open()
			if err := <-busy; err != nil {
				t.Error(err)
			}
		})
	}
}
