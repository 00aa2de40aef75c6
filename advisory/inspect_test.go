package advisory_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/advisory"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/internal/testserver"
)

// TestInspect: holders and waiters are listed with their identity and what blocks them.
func TestInspect(t *testing.T) {
	t.Parallel()
	pool := pgtest.PoolOn(t, pgtest.Database(t), func(c *pgxpool.Config) {
		c.ConnConfig.RuntimeParams["application_name"] = "inspected"
	})
	key := advisory.NewKey("orders", "42")
	shared := advisory.KeyFromInt64(-7)
	before := holder(t, pool, key)
	ok(t, advisory.LockShared(t.Context(), before, shared))
	s := acquire(t, pool, advisory.KeyFromInt64(-1))
	waiter := begin(t, pool)
	result := make(chan error, 1)
	go func() { result <- advisory.Lock(t.Context(), waiter, key) }()
	pgtest.Eventually(t, "it waits", func() bool { return waitsFor(t, pool, key) == 1 })

	all, err := advisory.Inspect(t.Context(), pool)
	if err != nil || len(all) != 4 {
		t.Fatalf("%+v, %v", all, err)
	}
	of := func(key advisory.Key) (found []advisory.Usage) {
		for _, u := range all {
			if u.Key == key {
				found = append(found, u)
			}
		}
		return found
	}
	named := of(key)
	if len(named) != 2 {
		t.Fatalf("%+v", all)
	}
	h, w := named[0], named[1]
	user := pool.Config().ConnConfig.User
	var address string // the client's, as the server sees it
	ok(t, pool.QueryRow(t.Context(), "SELECT host(inet_client_addr())").Scan(&address))
	if !h.Granted || h.Shared || h.Namespace != "orders" || h.Name != "42" || h.ApplicationName != "inspected" || h.User != user || h.ClientAddr != address ||
		h.SessionAge <= 0 || h.TransactionAge <= 0 || h.Waiting != 0 || len(h.WaitsFor) != 0 {
		t.Errorf("the holder: %+v", h)
	}
	if w.Granted || w.PID == h.PID || len(w.WaitsFor) != 1 || w.WaitsFor[0] != h.PID || w.TransactionAge <= 0 {
		t.Errorf("the waiter: %+v", w)
	}
	if v := count(t, pool, "SELECT current_setting('server_version_num')::int"); v >= 140000 && w.Waiting <= 0 {
		t.Errorf("the waiter: %+v", w)
	}
	if p := of(shared); len(p) != 1 || !p[0].Shared || p[0].Name != "" || p[0].PID != h.PID {
		t.Errorf("the shared one: %+v", p)
	}
	if p := of(advisory.KeyFromInt64(-1)); len(p) != 1 || p[0].PID != s.PID() || p[0].TransactionAge != 0 {
		t.Errorf("the session: %+v", p)
	}
	ok(t, before.Rollback(t.Context()))
	ok(t, <-result)
}

// TestInspectPreparedTransactions: a prepared transaction holds its locks without a process.
func TestInspectPreparedTransactions(t *testing.T) {
	t.Parallel()
	server := pgtest.Server(t, testserver.Options{Settings: map[string]string{"max_prepared_transactions": "3"}})
	pool := pgtest.PoolOn(t, server.URL())
	key := advisory.NewKey("inspect", t.Name())
	const name = "it's prepared"
	tx := begin(t, pool)
	ok(t, advisory.Lock(t.Context(), tx, key))
	if _, err := tx.Exec(t.Context(), "PREPARE TRANSACTION 'it''s prepared'"); err != nil {
		t.Fatal(err)
	}
	_ = tx.Rollback(t.Context()) // PREPARE TRANSACTION has ended it
	waiter := begin(t, pool)
	waiting := make(chan error, 1)
	go func() { waiting <- advisory.Lock(t.Context(), waiter, key) }()
	pgtest.Eventually(t, "it waits", func() bool { return waitsFor(t, pool, key) == 1 })

	all, err := advisory.Inspect(t.Context(), pool)
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
	ok(t, <-waiting)
}

// TestATimeoutNamesTheHolder: the error of Do says which session holds the lock.
func TestATimeoutNamesTheHolder(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	key := advisory.NewKey("inspect", t.Name())
	tx := begin(t, pool)
	ok(t, advisory.Lock(t.Context(), tx, key))
	pid := tx.Conn().PgConn().PID()
	never := func(context.Context, pgx.Tx) error { t.Error("it runs"); return nil }
	err := advisory.Do(t.Context(), pool, key, never, advisory.WithTimeout(100*time.Millisecond))
	var refused *advisory.NotAcquiredError
	if !errors.As(err, &refused) || refused.Holder == nil || refused.Holder.PID != pid || !strings.Contains(err.Error(), fmt.Sprintf("held by process %d", pid)) {
		t.Errorf("%v: %+v", err, refused)
	}
	ok(t, tx.Rollback(t.Context()))
}
