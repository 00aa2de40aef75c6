package sqltx_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglock/pglock-go/advisory"
	"github.com/pglock/pglock-go/fencing"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/internal/schema"
	"github.com/pglock/pglock-go/pglock/sqltx"
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
	if err := advisory.Lock(t.Context(), tx, k[0]); err != nil {
		t.Fatal(err)
	}
	if err := advisory.TryLock(t.Context(), tx, k[1]); err != nil {
		t.Fatal(err)
	}
	other, otherTx := f.begin()
	for _, held := range k[:2] {
		if err := advisory.TryLock(t.Context(), otherTx, held); !errors.Is(err, advisory.ErrNotAcquired) {
			t.Errorf("%v: %v", held, err)
		}
		if err := advisory.TryLock(t.Context(), f.pgx(), held); !errors.Is(err, advisory.ErrNotAcquired) {
			t.Errorf("%v, through pgx: %v", held, err)
		}
	}
	if err := advisory.LockAll(t.Context(), tx, k); err != nil {
		t.Fatal(err)
	}
	if err := advisory.LockAll(t.Context(), otherTx, k, advisory.WithTimeout(20*time.Millisecond)); !errors.Is(err, advisory.ErrTimeout) {
		t.Errorf("LockAll: %v", err)
	}
	if _, err := other.ExecContext(t.Context(), "SELECT 1"); err != nil {
		t.Errorf("the transaction after a timeout: %v", err)
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := advisory.LockAll(t.Context(), otherTx, k); err != nil {
		t.Errorf("after the commit: %v", err)
	}
}

// TestP34_TimeoutLeavesTheTransaction usable, with its settings, and without the lock.
func TestP34_TimeoutLeavesTheTransaction(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	key := keys(t, "k")[0]
	holder := f.pgx()
	if err := advisory.Lock(t.Context(), holder, key); err != nil {
		t.Fatal(err)
	}
	_, tx := f.begin()
	f.exec(tx, "SET LOCAL lock_timeout = '17s'")
	short, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
	defer cancel()
	for name, err := range map[string]error{
		"timeout":  advisory.Lock(t.Context(), tx, key, advisory.WithTimeout(20*time.Millisecond)),
		"deadline": advisory.Lock(short, tx, key),
	} {
		if !errors.Is(err, advisory.ErrNotAcquired) {
			t.Errorf("%s: %v", name, err)
		}
		if name == "deadline" && !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if s := value[string](t, tx, "SHOW lock_timeout"); s != "17s" {
		t.Errorf("lock_timeout is %s", s)
	}
	if err := holder.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := advisory.TryLock(t.Context(), f.pgx(), key); err != nil {
		t.Errorf("the lock is still held: %v", err)
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Errorf("commit: %v", err)
	}
}

// checkable has the methods of pgx.Tx: those of the adapter, and others that a check never calls.
type checkable struct {
	*sqltx.Tx
	rest
}

type rest struct{ pgx.Tx }

func TestFencingCheck(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	name := pgtest.Schema(t, f.pool)
	fence := fencing.Fence{Schema: name, Name: "n"}
	err := f.pool.QueryRow(t.Context(), schema.Render(`INSERT INTO pglock.distributed_locks (name, token, version, holder, acquired_at, expires_at)
		VALUES ('n', pglock.next_fencing_token(), 1, 'h', clock_timestamp(), clock_timestamp() + interval '1 min') RETURNING token`, name)).Scan(&fence.Token)
	if err != nil {
		t.Fatal(err)
	}
	_, tx := f.begin()
	if err := fencing.Check(t.Context(), checkable{Tx: tx}, fence); err != nil {
		t.Errorf("the current grant: %v", err)
	}
	fence.Token++
	var stale *fencing.StaleError
	if err := fencing.Check(t.Context(), checkable{Tx: tx}, fence); !errors.As(err, &stale) || stale.Current != fence.Token-1 {
		t.Errorf("a forged grant: %v", err)
	}
	fence.Schema = "no such schema"
	if err := fencing.Check(t.Context(), checkable{Tx: tx}, fence); !errors.Is(err, fencing.ErrSchemaMissing) {
		t.Errorf("no schema: %v", err)
	}
}
