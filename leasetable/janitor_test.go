package leasetable_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/leasetable"
)

// TestP03_ClientsPrune by themselves, one at a time: what is idle, and what dead clients
// have left in the queue.
func TestP03_ClientsPrune(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	holder := f.open(leasetable.WithoutPruning())
	held := try(t, holder, "held")
	for i := range 30 {
		release(t, try(t, holder, fmt.Sprint("idle", i)))
	}
	f.sql("INSERT INTO pglock.lock_waiters (name, client, expires_at) VALUES ('held', 'dead', now() - interval '1 hour')")
	f.sql("INSERT INTO pglock.lock_waiters (name, client, expires_at) VALUES ('held', 'alive', now() + interval '1 hour')")
	for range 3 {
		f.open(leasetable.WithJanitor(50*time.Millisecond, time.Millisecond))
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
	if _, err := leasetable.Open(t.Context(), f.pool, leasetable.WithRetention(time.Second)); !errors.Is(err, leasetable.ErrInvalidOption) {
		t.Errorf("%v", err)
	}
}
