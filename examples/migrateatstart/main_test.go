package main

import (
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/pglocktest"
)

// TestOneReplicaMigrates although four start at once, while another one has died in its migration.
func TestOneReplicaMigrates(t *testing.T) {
	t.Parallel()
	locks := pglocktest.New(t, nil)
	pool := newPool(t, locks, "")
	locks.Busy(lockName, "a replica that dies")
	var replicas sync.WaitGroup
	for range 4 {
		client := locks.Open()
		replicas.Go(func() {
			if err := migrate(t.Context(), client, pool, time.Minute); err != nil {
				t.Error(err)
			}
		})
	}
	for deadline := time.Now().Add(time.Minute); !slices.Contains(locks.Events(), "waits "+lockName); {
		if time.Now().After(deadline) {
			t.Fatal("no replica waits for the lock")
		}
		<-time.After(time.Millisecond)
	}
	if n := version(t, pool); n != 0 {
		t.Errorf("version %d before the lock was granted", n)
	}
	locks.Expire(lockName)
	replicas.Wait()
	if n := version(t, pool); n != 2 {
		t.Errorf("version %d", n)
	}
	if err := migrate(t.Context(), locks.Client, pool, time.Minute); err != nil {
		t.Errorf("a replica that starts later: %v", err)
	}
}

// TestAReplicaGivesUp when another one migrates for too long, and says which one.
func TestAReplicaGivesUp(t *testing.T) {
	t.Parallel()
	locks := pglocktest.New(t, nil)
	pool := newPool(t, locks, "")
	locks.Busy(lockName, "replica-1")
	err := migrate(t.Context(), locks.Client, pool, time.Millisecond)
	if !errors.Is(err, pglock.ErrNotAcquired) || !strings.Contains(err.Error(), "held by replica-1") {
		t.Errorf("while replica-1 migrates: %v", err)
	}
	if n := version(t, pool); n != 0 {
		t.Errorf("version %d", n)
	}
}

// version returns how many of the migrations are there.
func version(t *testing.T, pool *pgxpool.Pool) (n int) {
	t.Helper()
	const sql = `SELECT (to_regclass('accounts') IS NOT NULL)::int + (to_regclass('accounts_email') IS NOT NULL)::int`
	if err := pool.QueryRow(t.Context(), sql).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}
