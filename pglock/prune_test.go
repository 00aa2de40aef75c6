package pglock_test

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/pglock"
)

func TestP03_PruneDeletesWhatNobodyUses(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.open()
	held := try(t, c, "held")
	expired := try(t, c, "expired", pglock.WithTTL(500*time.Millisecond), pglock.WithRenewEvery(0))
	within(t, 5*time.Second, "expiry", expired.Done())
	for i := range 2500 {
		f.sql(`INSERT INTO pglock.distributed_locks (name, token, version, acquired_at, expires_at)
		       VALUES ($1, pglock.next_fencing_token(), 1, now() - interval '25 hours', '-infinity')`, fmt.Sprint("old", i))
	}
	recent := try(t, c, "recent")
	release(t, recent)

	n, err := c.Prune(t.Context(), 24*time.Hour)
	if err != nil || n != 2500 {
		t.Errorf("pruned %d, %v, of 2500 old rows in more than one batch", n, err)
	}
	for _, name := range []string{"held", "expired", "recent"} {
		if _, err := c.Get(t.Context(), name); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	pgtest.Eventually(t, 5*time.Second, "expired by the server's clock too", func() bool {
		_, err := c.Prune(t.Context(), 0)
		if err != nil {
			t.Fatal(err)
		}
		_, err = c.Get(t.Context(), "expired")
		return errors.Is(err, pglock.ErrNotFound)
	})
	if _, err := c.Get(t.Context(), "held"); err != nil {
		t.Errorf("a held lock was pruned: %v", err)
	}
	if _, err := c.Get(t.Context(), "recent"); !errors.Is(err, pglock.ErrNotFound) {
		t.Errorf("the row with the highest token, which is idle: %v", err)
	}
	if again := try(t, c, "expired"); again.Token() <= recent.Token() {
		t.Errorf("a pruned name was granted token %d after %d", again.Token(), recent.Token())
	}
	if _, err := c.Prune(t.Context(), -time.Second); !errors.Is(err, pglock.ErrInvalidOption) {
		t.Errorf("a negative age: %v", err)
	}
	release(t, held)
}

// TestP48_PruningDoesNotInheritTheLeaseOptions: with these options, which are valid together, a
// lease with the pruner's TTL would be renewed too late.
func TestP48_PruningDoesNotInheritTheLeaseOptions(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	release(t, try(t, f.open(pglock.WithRetention(0)), "idle"))
	f.open(pglock.WithTTL(10*time.Minute), pglock.WithRenewEvery(2*time.Minute), pglock.WithSafetyMargin(2*time.Minute),
		pglock.WithPruneEvery(50*time.Millisecond, time.Millisecond))
	pgtest.Eventually(t, 20*time.Second, "the idle row is gone", func() bool {
		return value[int](f, "SELECT count(*) FROM pglock.distributed_locks WHERE name = 'idle'") == 0
	})
}

// TestDeadQueueRowsAreDeleted: also if pruning fails, and a failure is logged.
func TestDeadQueueRowsAreDeleted(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		retention time.Duration
		breaks    string
		logged    string
	}{
		"without pruning": {},
		"pruning fails":   {time.Minute, "DROP FUNCTION pglock.raise_pruned(bigint)", "could not prune"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			var log logBuffer
			f.open(pglock.WithPruneEvery(20*time.Millisecond, tc.retention), pglock.WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
			if tc.breaks != "" {
				f.sql(tc.breaks)
			}
			f.sql("INSERT INTO pglock.lock_waiters (name, client, expires_at) VALUES ('n', 'dead', now() - interval '1 hour')")
			pgtest.Eventually(t, 20*time.Second, "the dead client's row is gone", func() bool {
				return value[int](f, "SELECT count(*) FROM pglock.lock_waiters") == 0
			})
			pgtest.Eventually(t, 20*time.Second, "the failure is logged", func() bool { return strings.Contains(log.String(), tc.logged) })
		})
	}
}

// TestP03_ClientsPrune checks that clients prune idle rows, and the queue rows of dead clients, one
// client at a time.
func TestP03_ClientsPrune(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	holder := f.open(pglock.WithRetention(0))
	held := try(t, holder, "held")
	for i := range 30 {
		release(t, try(t, holder, fmt.Sprint("idle", i)))
	}
	f.sql("INSERT INTO pglock.lock_waiters (name, client, expires_at) VALUES ('held', 'dead', now() - interval '1 hour')")
	f.sql("INSERT INTO pglock.lock_waiters (name, client, expires_at) VALUES ('held', 'alive', now() + interval '1 hour')")
	for range 3 {
		f.open(pglock.WithPruneEvery(50*time.Millisecond, time.Millisecond))
	}
	pgtest.Eventually(t, 20*time.Second, "what is idle is gone", func() bool {
		return value[int](f, "SELECT count(*) FROM pglock.distributed_locks WHERE name LIKE 'idle%'") == 0 &&
			value[int](f, "SELECT count(*) FROM pglock.lock_waiters WHERE client = 'dead'") == 0
	})
	if _, err := holder.Get(t.Context(), "held"); err != nil {
		t.Errorf("a held lock: %v", err)
	}
	if f.tickets("held") != 1 {
		t.Error("a ticket that counts was removed")
	}
	if l := try(t, holder, "idle0"); l.Token() <= held.Token() {
		t.Errorf("token %d after %d", l.Token(), held.Token())
	}
	if _, err := pglock.Open(t.Context(), f.pool, pglock.WithRetention(time.Second)); !errors.Is(err, pglock.ErrInvalidOption) {
		t.Errorf("%v", err)
	}
}
