package pglock_test

import (
	"errors"
	"testing"
	"time"

	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/pglock"
)

// TestARejectedLoginEndsTheWait: a role that may not log in any more does not wait for 30 s, as for
// a server that is away. The holder's lease ends by its deadline, and its release says why.
func TestARejectedLoginEndsTheWait(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c, rival := f.open(), f.openUnclosed()
	l := try(t, f.openAsOwner(), "n")
	lost := make(chan error, 1)
	go func() {
		_, err := c.Acquire(t.Context(), "n")
		lost <- err
	}()
	pgtest.Eventually(t, 10*time.Second, "it waits", func() bool { return pglock.HeadWaits(c, "n") })
	mine := try(t, rival, "mine")
	role := pgtest.RoleOf(pgtest.UserPool(t, f.pool, f.schema))
	f.sql(`ALTER ROLE "` + role + `" NOLOGIN`)
	f.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = $1", role)
	began := time.Now()
	select {
	case err := <-lost:
		if !errors.Is(err, pglock.ErrLogin) || errors.Is(err, pglock.ErrUnavailable) {
			t.Errorf("the waiter was told %v", err)
		}
	case <-time.After(25 * time.Second):
		t.Error("the waiter still waits")
	}
	if err := mine.Release(t.Context()); !errors.Is(err, pglock.ErrLogin) {
		t.Errorf("Release: %v", err)
	}
	if took := time.Since(began); took > 20*time.Second {
		t.Errorf("it took %v", took)
	}
	f.sql(`ALTER ROLE "` + role + `" LOGIN`)
	release(t, mine)
	if err := rival.Close(t.Context()); err != nil {
		t.Error(err)
	}
	release(t, l)
}

// openAsOwner returns a client that uses the role of the fixture's pool.
func (f fixture) openAsOwner() *pglock.Client {
	f.t.Helper()
	c, err := pglock.Open(f.t.Context(), f.pool, pglock.WithSchema(f.schema))
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() {
		if err := c.Close(f.t.Context()); err != nil {
			f.t.Errorf("Close: %v", err)
		}
	})
	return c
}
