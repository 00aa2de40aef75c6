//go:build unix

package main

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/pglock/pglock-go/internal/locktest"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/internal/schema"
	"github.com/pglock/pglock-go/internal/testserver"
)

// guarded begins a transaction that guards the grant of a name, and returns it with its process.
func (c *cli) guarded(name string, savepoint bool) (pgx.Tx, int) {
	c.t.Helper()
	tx, err := c.pool.Begin(context.Background())
	locktest.OK(c.t, err)
	c.t.Cleanup(func() { _ = tx.Rollback(context.Background()) }) // it may have ended
	if savepoint {
		_, err = tx.Exec(c.t.Context(), "SAVEPOINT s")
		locktest.OK(c.t, err)
	}
	_, err = tx.Exec(c.t.Context(), schema.Render(`SELECT pglock.guard($1, coalesce((SELECT p.token FROM pglock.lock_permits AS p WHERE p.name = l.name), l.token))
		FROM pglock.distributed_locks AS l WHERE l.name = $1`, c.schema), name)
	locktest.OK(c.t, err)
	_, err = tx.Exec(c.t.Context(), "SET LOCAL idle_in_transaction_session_timeout = 0") // the guard bounds it, and a loaded machine is slow
	locktest.OK(c.t, err)
	var pid int
	locktest.OK(c.t, tx.QueryRow(c.t.Context(), "SELECT pg_backend_pid() /* the guard's last statement */").Scan(&pid))
	return tx, pid
}

// TestGuardedLocks: a lock that looks free and that no client gets, because a transaction has
// guarded a grant that has ended. Each command names the session, also if there are two, if the
// grant was shared, and if the guard is in a savepoint.
func TestGuardedLocks(t *testing.T) {
	t.Parallel()
	for name, flags := range map[string][]string{"lock": nil, "reader": {"--read"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCLI(t)
			c.held("n", flags...)
			first, pid := c.guarded("n", false)
			second, other := c.guarded("n", true)
			if r := c.expect(0, "ls"); strings.Contains(r.stdout, "guarded") {
				t.Errorf("a grant that is held is guarded, as many are: %s", r.stdout)
			}
			named := func(what, text string, pids ...int) {
				t.Helper()
				for _, pid := range pids {
					if !strings.Contains(text, fmt.Sprintf("by process %d, ", pid)) || !strings.Contains(text, "idle in transaction for ") || !strings.Contains(text, "the guard's last statement") {
						t.Errorf("%s: no process %d in %q", what, pid, text)
					}
				}
			}
			named("show", c.expect(0, "show", "n").stdout, pid, other)
			r := c.expect(statusNotAcquired, "release", "n", "--force", "--reason", "a test")
			named("release", r.stderr, pid, other)
			if want := fmt.Sprintf("SELECT pg_terminate_backend(%d)", pid); !strings.Contains(r.stderr, want) || strings.Count(strings.TrimSpace(r.stderr), "\n") > 0 {
				t.Errorf("release: no %q in %q", want, r.stderr)
			}
			named("show", c.expect(0, "show", "n").stdout, pid, other)
			for _, args := range [][]string{{"ls"}, {"ls", "--all"}, {"ls", "--pattern", "?"}} {
				if r := c.expect(0, args...); strings.Count(r.stdout, "guarded") != 2 {
					t.Errorf("%q: %s", args, r.stdout)
				} else {
					named("ls", r.stdout, pid, other)
				}
			}
			if r := c.expect(0, "ls", "--pattern", "other"); strings.Contains(r.stdout, "guarded") {
				t.Errorf("a lock that does not match: %s", r.stdout)
			}
			locktest.OK(t, first.Commit(t.Context()))
			r = c.expect(statusNotAcquired, "release", "n", "--force", "--reason", "a test") // as the first one advised
			if named("release", r.stderr, other); strings.Contains(r.stderr, fmt.Sprint(pid)) {
				t.Errorf("release: %q", r.stderr)
			}
			locktest.OK(t, second.Rollback(t.Context()))
			c.expect(statusNoGrant, "release", "n", "--force", "--reason", "a test")
			if r := c.expect(0, "ls"); strings.Contains(r.stdout, "guarded") {
				t.Errorf("the transactions have ended: %s", r.stdout)
			}
			c.expect(0, append(append([]string{"run", "--wait", "0"}, flags...), "n", "--", "true")...)
		})
	}
}

// TestARenewalIsNoGuard: a transaction that changes the row, as a renewal does, is not shown as one
// that guards its grant.
func TestARenewalIsNoGuard(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	c.held("n")
	tx, err := c.pool.Begin(t.Context())
	locktest.OK(t, err)
	defer func() { _ = tx.Rollback(context.Background()) }()
	_, err = tx.Exec(t.Context(), schema.Render("UPDATE pglock.distributed_locks SET version = version + 1 WHERE name = 'n'", c.schema))
	locktest.OK(t, err)
	if r := c.expect(0, "show", "n"); strings.Contains(r.stdout, "guarded") {
		t.Errorf("%s", r.stdout)
	}
	locktest.OK(t, tx.Rollback(t.Context()))
	if c.guarded("n", false); !strings.Contains(c.expect(0, "show", "n").stdout, "guarded") {
		t.Error("control: a guard is not shown")
	}
	locktest.Exec(t, c.pool, schema.Render("UPDATE pglock.distributed_locks SET holder = NULL WHERE name = 'n'", c.schema)) // as a release that keeps the lock for a while
	if r := c.expect(0, "ls"); !strings.Contains(r.stdout, "guarded") {
		t.Errorf("the grant has ended: %s", r.stdout)
	}
}

// TestPreparedGuard: a prepared transaction has no process.
func TestPreparedGuard(t *testing.T) {
	t.Parallel()
	server := pgtest.Server(t, testserver.Options{Settings: map[string]string{"max_prepared_transactions": "2"}})
	c := bareCLI(t)
	c.pool = pgtest.PoolOn(t, server.URL())
	c.schema = pgtest.Schema(t, c.pool)
	c.set("PGLOCK_SCHEMA", c.schema)
	c.set("PGLOCK_DATABASE_URL", server.URL())
	c.held("n")
	tx, _ := c.guarded("n", false)
	_, err := tx.Exec(t.Context(), "PREPARE TRANSACTION 'it''s a guard'")
	locktest.OK(t, err)
	const remedy = "ROLLBACK PREPARED 'it''s a guard'"
	if r := c.expect(statusNotAcquired, "release", "n", "--force", "--reason", "a test"); !strings.Contains(r.stderr, remedy) {
		t.Errorf("%s", r.stderr)
	}
	locktest.Exec(t, c.pool, remedy)
	c.expect(0, "run", "--wait", "0", "n", "--", "true")
}
