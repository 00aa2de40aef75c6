package pglock_test

import (
	"context"
	"testing"
	"time"

	"github.com/pglock/pglock-go/pglock"
)

// ghost puts a dead client into the queue for name.
func (f fixture) ghost(name string) {
	f.t.Helper()
	f.sql("INSERT INTO pglock.lock_waiters (name, client, expires_at) VALUES ($1, 'ghost', clock_timestamp() + interval '1 hour')", name)
}

// tickets returns the number of clients with a row in the queue for name.
func (f fixture) tickets(name string) int {
	f.t.Helper()
	return value[int](f, "SELECT count(*) FROM pglock.lock_waiters WHERE name = $1", name)
}

// TestP22_RetriesDoNotComeTogether compares the pauses of several waiters.
func TestP22_RetriesDoNotComeTogether(t *testing.T) {
	t.Parallel()
	const waiters, pauses = 50, 12
	last := map[time.Duration]int{}
	for range waiters {
		var sum time.Duration
		next := pglock.NewBackoff()
		for range pauses {
			d := next()
			if d <= 0 || d > 400*time.Millisecond {
				t.Fatalf("a pause of %v", d)
			}
			sum += d
		}
		last[sum.Round(time.Millisecond)]++
	}
	for at, n := range last {
		if n > waiters/5 {
			t.Errorf("%d of %d waiters try again in the same millisecond, %v after they began together", n, waiters, at)
		}
	}
}

// TestRowSecurityDoesNotMakeAcquireSpin: a policy hides the row of a held lock, so that each answer
// looks as if another caller had been faster.
func TestRowSecurityDoesNotMakeAcquireSpin(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	proxy, far := f.proxied()
	c := far.open(pglock.WithPollOnly())
	f.sql("INSERT INTO pglock.distributed_locks (name, token, version, holder, acquired_at, expires_at) " +
		"VALUES ('hidden', pglock.next_fencing_token(), 1, 'somebody', clock_timestamp(), clock_timestamp() + interval '1 hour')")
	f.sql("ALTER TABLE pglock.distributed_locks ENABLE ROW LEVEL SECURITY")
	f.sql("CREATE POLICY visible ON pglock.distributed_locks USING (holder IS DISTINCT FROM 'somebody')")
	release(t, try(t, c, "visible"))
	ctx := bounded(t, 2*time.Second)
	before := proxy.Stats().ToServer
	_, err := c.Acquire(ctx, "hidden")
	fails(t, "Acquire: ", err, pglock.ErrNotAcquired, context.DeadlineExceeded)
	if sent := proxy.Stats().ToServer - before; sent > 300_000 {
		t.Errorf("%d bytes were sent in 2 s", sent)
	}
}
