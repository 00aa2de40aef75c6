package leasetable_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/leasetable"
)

func TestP03_PruneDeletesWhatNobodyUses(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.open()
	held := try(t, c, "held")
	expired := try(t, c, "expired", leasetable.WithTTL(500*time.Millisecond), leasetable.WithoutRenewal())
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
		return errors.Is(err, leasetable.ErrNotFound)
	})
	if _, err := c.Get(t.Context(), "held"); err != nil {
		t.Errorf("a held lock was pruned: %v", err)
	}
	if _, err := c.Get(t.Context(), "recent"); err != nil {
		t.Errorf("the row with the highest token was pruned: %v", err)
	}
	if again := try(t, c, "expired"); again.Token() <= recent.Token() {
		t.Errorf("a pruned name was granted token %d after %d", again.Token(), recent.Token())
	}
	if _, err := c.Prune(t.Context(), -time.Second); !errors.Is(err, leasetable.ErrInvalidOption) {
		t.Errorf("a negative age: %v", err)
	}
	release(t, held)
}
