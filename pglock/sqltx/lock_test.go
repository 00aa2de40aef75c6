package sqltx_test

import (
	"errors"
	"testing"
	"time"

	"github.com/pglock/pglock-go/advisory"
)

func keys(t *testing.T, names ...string) (keys []advisory.Key) {
	t.Helper()
	for _, n := range names {
		keys = append(keys, advisory.NewKey(t.Name(), n))
	}
	return keys
}

func TestAdvisoryLocksExclude(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	k := keys(t, "a", "b", "c")
	_, tx := f.begin()
	ok(t, advisory.Lock(t.Context(), tx, k[0]))
	ok(t, advisory.TryLock(t.Context(), tx, k[1]))
	other, otherTx := f.begin()
	for _, held := range k[:2] {
		if err := advisory.TryLock(t.Context(), otherTx, held); !errors.Is(err, advisory.ErrNotAcquired) {
			t.Errorf("%v: %v", held, err)
		}
		if err := advisory.TryLock(t.Context(), f.pgx(), held); !errors.Is(err, advisory.ErrNotAcquired) {
			t.Errorf("%v, through pgx: %v", held, err)
		}
	}
	ok(t, advisory.LockAll(t.Context(), tx, k))
	if err := advisory.LockAll(t.Context(), otherTx, k, advisory.WithTimeout(20*time.Millisecond)); !errors.Is(err, advisory.ErrTimeout) {
		t.Errorf("LockAll: %v", err)
	}
	if _, err := other.ExecContext(t.Context(), "SELECT 1"); err != nil {
		t.Errorf("the transaction after a timeout: %v", err)
	}
	ok(t, tx.Commit(t.Context()))
	if err := advisory.LockAll(t.Context(), otherTx, k); err != nil {
		t.Errorf("after the commit: %v", err)
	}
}
