package advisory_test

import (
	"testing"
	"time"

	"github.com/pglock/pglock-go/advisory"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/internal/testserver"
)

// TestInspectPreparedTransactions: they hold their locks without a process.
func TestInspectPreparedTransactions(t *testing.T) {
	t.Parallel()
	server := pgtest.Server(t, testserver.Options{Settings: map[string]string{"max_prepared_transactions": "3"}})
	pool := pgtest.PoolOn(t, server.URL())
	key := advisory.NewKey("inspect", t.Name())
	const name = "it's prepared"
	tx := begin(t, pool)
	if err := advisory.Lock(t.Context(), tx, key); err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), "PREPARE TRANSACTION 'it''s prepared'"); err != nil {
		t.Fatal(err)
	}
	_ = tx.Rollback(t.Context()) // there is nothing to roll back
	waiter := begin(t, pool)
	waiting := make(chan error, 1)
	go func() { waiting <- advisory.Lock(t.Context(), waiter, key) }()
	pgtest.Eventually(t, 10*time.Second, "it waits", func() bool { return waitsFor(t, pool, key) == 1 })

	all, err := advisory.Inspect(t.Context(), pool, nil)
	if err != nil || len(all) != 2 {
		t.Fatalf("%+v, %v", all, err)
	}
	if u := all[0]; u.Key != key || !u.Granted || u.PID != 0 || u.Prepared != name || u.User != "postgres" || u.TransactionAge <= 0 || u.SessionAge != 0 {
		t.Errorf("the prepared one: %+v", u)
	}
	if u := all[1]; u.Granted || u.PID == 0 || u.Prepared != "" || len(u.WaitsFor) != 1 || u.WaitsFor[0] != 0 {
		t.Errorf("the waiter: %+v", u)
	}
	if _, err := pool.Exec(t.Context(), "ROLLBACK PREPARED 'it''s prepared'"); err != nil {
		t.Error(err)
	}
	if err := <-waiting; err != nil {
		t.Error(err)
	}
}
