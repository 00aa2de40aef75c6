package pglock_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/internal/schema"
	"github.com/pglock/pglock-go/pglock"
)

// lastGrant returns what the row of the name n says about the last grant that is over.
func (f fixture) lastGrant() string {
	f.t.Helper()
	return value[string](f, `SELECT concat_ws(' ', last_end, last_holder, ended_at BETWEEN now() - interval '1 hour' AND clock_timestamp(),
		'then', coalesce(holder, 'free')) FROM pglock.distributed_locks WHERE name = 'n'`)
}

// TestTheRowKeepsTheLastHolder: by each statement that ends a grant or writes the next one, alone
// and in batches.
func TestTheRowKeepsTheLastHolder(t *testing.T) {
	t.Parallel()
	for _, forced := range []bool{false, true} {
		t.Run(fmt.Sprint("batches ", forced), func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			c := f.open(pglock.WithBatches(8, forced), pglock.WithRenewEvery(0))
			is := func(want string) {
				t.Helper()
				if got := f.lastGrant(); got != want {
					t.Errorf("the row says %q, want %q", got, want)
				}
			}
			l := try(t, c, "n", pglock.WithHolder("first"))
			is("then first")
			release(t, l)
			is("released first t then free")

			expiring := try(t, c, "n", pglock.WithHolder("second"), pglock.WithTTL(500*time.Millisecond))
			is("released first t then second")
			<-expiring.Done()
			pgtest.Eventually(t, 10*time.Second, "it has expired", func() bool {
				return value[bool](f, "SELECT expires_at <= clock_timestamp() FROM pglock.distributed_locks WHERE name = 'n'")
			})
			l = try(t, c, "n", pglock.WithHolder("third"))
			is("expired second t then third")
			waiting := make(chan *pglock.Lease, 1)
			go func() {
				next, err := c.Acquire(t.Context(), "n", pglock.WithHolder("fourth"))
				if err != nil {
					t.Error(err)
				}
				waiting <- next
			}()
			pgtest.Eventually(t, 10*time.Second, "the fourth waits", func() bool { return pglock.HeadWaits(c, "n") })
			release(t, l)
			l = <-waiting
			is("released third t then fourth")

			// The full statement writes the grant: the queue was skipped.
			f.sql("INSERT INTO pglock.lock_waiters (name, client, ticket, expires_at) VALUES ('n', 'dead', 1::bigint << 61, now() + interval '1 hour')")
			f.sql("UPDATE pglock.distributed_locks SET ended_at = now() - interval '2 min', expires_at = now() - interval '1 min'")
			fifth := try(t, c, "n", pglock.WithHolder("fifth"))
			if err := l.Release(t.Context()); !errors.Is(err, pglock.ErrLost) {
				t.Errorf("release of the expired lease: %v", err)
			}
			is("expired fourth t then fifth")
			release(t, fifth)
			is("released fifth t then free")
		})
	}
}

// TestTheViewsTellWhoHoldsAndWaits, to a role without rights on the tables.
func TestTheViewsTellWhoHoldsAndWaits(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	held := try(t, f.open(), "held", pglock.WithHolder("me"), pglock.WithLabels(map[string]string{"k": "v"}))
	release(t, try(t, f.open(), "free"))
	f.sql("INSERT INTO pglock.distributed_locks (name, token, version, holder, acquired_at, expires_at) VALUES ('expired', 1, 1, 'dead', now(), now())")
	got := f.waits(f.open(pglock.WithHolder("waiter")), "held")
	// Neither an expired row nor that of a client that watches is a waiter.
	f.sql("INSERT INTO pglock.lock_waiters (name, client, ticket, expires_at) VALUES ('held', 'dead', 1::bigint << 61, now() - interval '1 s'), ('held', 'watches', -1, now() + interval '1 hour')")

	reader := fixture{t, pgtest.WriterPool(t, f.pool, f.schema), f.schema} // with USAGE on the schema
	f.sql("GRANT SELECT ON pglock.locks_held, pglock.locks_waiting TO " + schema.Quote(pgtest.RoleOf(reader.pool)))
	if n := value[int](reader, "SELECT count(*) FROM pglock.locks_held"); n != 1 {
		t.Errorf("%d held locks", n)
	}
	if !value[bool](reader, `SELECT name = 'held' AND holder = 'me' AND token = $1 AND labels->>'k' = 'v'
		AND since BETWEEN now() - interval '1 hour' AND clock_timestamp() AND remaining BETWEEN interval '1 s' AND interval '30 s'
		FROM pglock.locks_held`, int64(held.Token())) {
		t.Error("the view of held locks is wrong")
	}
	if n := value[int](reader, "SELECT count(*) FROM pglock.locks_waiting"); n != 1 {
		t.Errorf("%d waiters", n)
	}
	if !value[bool](reader, `SELECT name = 'held' AND client = 'waiter' AND ticket > 0 AND waited BETWEEN interval '0' AND interval '1 hour'
		FROM pglock.locks_waiting`) {
		t.Error("the view of waiters is wrong")
	}
	for _, refused := range []string{"SELECT count(*) FROM pglock.distributed_locks", "SELECT count(*) FROM pglock.lock_waiters"} {
		if err := reader.pool.QueryRow(t.Context(), f.named(refused)).Scan(new(int)); err == nil {
			t.Errorf("%s: allowed", refused)
		}
	}
	release(t, held)
	release(t, <-got)
}
