package pglock_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/pglock/pglock-go/internal/faultproxy"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/pglock"
)

// block makes first grants of the name wait inside the statement until the returned function is
// called.
func (f fixture) block(name string) (resume func()) {
	f.t.Helper()
	f.sql(`CREATE FUNCTION pglock.block() RETURNS trigger LANGUAGE plpgsql AS $$
	       BEGIN PERFORM set_config('lock_timeout', '0', true), pg_advisory_xact_lock(hashtextextended(TG_TABLE_SCHEMA, 43)); RETURN NEW; END $$`)
	f.sql(`CREATE TRIGGER block BEFORE INSERT ON pglock.distributed_locks FOR EACH ROW WHEN (NEW.name = '` + name + `') EXECUTE FUNCTION pglock.block()`)
	tx, err := f.pool.Begin(f.t.Context())
	if err != nil {
		f.t.Fatal(err)
	}
	resume = func() { _ = tx.Rollback(context.Background()) }
	f.t.Cleanup(resume)
	if _, err := tx.Exec(f.t.Context(), `SELECT pg_advisory_xact_lock(hashtextextended($1, 43))`, f.schema); err != nil {
		f.t.Fatal(err)
	}
	return resume
}

// blocked reports whether a first grant waits in block.
func (f fixture) blocked() bool {
	return value[bool](f, `SELECT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND NOT granted
		AND (classid::bigint << 32) + objid::bigint = hashtextextended($1, 43))`, f.schema)
}

// TestP44_ABatchThatFailsHalfWayKeepsItsGrants: a batch may need several statements, each of which
// commits by itself. When the network breaks after the first one, the callers that it has granted
// have their leases, and the others get an error.
func TestP44_ABatchThatFailsHalfWayKeepsItsGrants(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	proxy := faultproxy.New(t, address(f.pool.Config().ConnConfig))
	c := f.through(proxy.URL(pgtest.URL(t))).openUnclosed(pglock.WithMaxConns(2), pglock.WithTTL(time.Hour), pglock.WithRenewEvery(0))
	release(t, try(t, c, "known")) // its row exists: the fast path grants it
	goOn := f.occupy(c)
	resume := f.block("new")
	type result struct {
		lease *pglock.Lease
		err   error
	}
	results := map[string]chan result{"known": make(chan result, 1), "new": make(chan result, 1)}
	for name, got := range results {
		go func() {
			l, err := c.TryAcquire(t.Context(), name)
			got <- result{l, err}
		}()
	}
	gathered(t, c, 2)
	goOn()
	pgtest.Eventually(t, 10*time.Second, "the second statement is in progress", f.blocked)
	proxy.Refuse(true)
	proxy.Sever()
	resume()
	if got := <-results["known"]; got.err != nil {
		t.Errorf("granted by the first statement, the second fails: %v; and the lock is held for %v by nobody",
			got.err, value[time.Duration](f, "SELECT expires_at - clock_timestamp() FROM pglock.distributed_locks WHERE name = 'known'"))
	}
	if got := <-results["new"]; !errors.Is(got.err, pglock.ErrUnavailable) {
		t.Errorf("without an answer: %v", got.err)
	}
	proxy.Refuse(false)
	if err := c.Close(context.WithoutCancel(t.Context())); err != nil {
		t.Errorf("Close: %v", err)
	}
	pgtest.Eventually(t, 10*time.Second, "no lock is left", func() bool {
		return value[int](f, "SELECT count(*) FROM pglock.distributed_locks WHERE holder IS NOT NULL") == 0
	})
}
