package advisory_test

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/advisory"
	"github.com/pglock/pglock-go/internal/pgtest"
)

// TestInspect: holders and waiters are listed with who they are, and behind whom they wait.
func TestInspect(t *testing.T) {
	t.Parallel()
	pool := pgtest.PoolOn(t, pgtest.Database(t), func(c *pgxpool.Config) {
		c.ConnConfig.RuntimeParams["application_name"] = "inspected"
	})
	var names advisory.Names
	key := names.Key("orders", "42")
	if key != advisory.NewKey("orders", "42") {
		t.Error("another key")
	}
	pair := advisory.KeyFromInt32s(-7, 8)
	before := holder(t, pool, key)
	if err := advisory.LockShared(t.Context(), before, pair); err != nil {
		t.Fatal(err)
	}
	s := acquire(t, pool, advisory.KeyFromInt64(-1))
	waiter := begin(t, pool)
	result := make(chan error, 1)
	go func() { result <- advisory.Lock(t.Context(), waiter, key) }()
	pgtest.Eventually(t, 10*time.Second, "it waits", func() bool { return waitsFor(t, pool, key) == 1 })

	all, err := advisory.Inspect(t.Context(), pool, &names)
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
	var address string // of this machine, as the server sees it
	if err := pool.QueryRow(t.Context(), "SELECT host(inet_client_addr())").Scan(&address); err != nil {
		t.Fatal(err)
	}
	if !h.Granted || h.Shared || h.Name != "orders/42" || h.ApplicationName != "inspected" || h.User != user || h.ClientAddr != address ||
		h.SessionAge <= 0 || h.TransactionAge <= 0 || h.Waiting != 0 || len(h.WaitsFor) != 0 {
		t.Errorf("the holder: %+v", h)
	}
	if w.Granted || w.PID == h.PID || len(w.WaitsFor) != 1 || w.WaitsFor[0] != h.PID || w.TransactionAge <= 0 {
		t.Errorf("the waiter: %+v", w)
	}
	if v := count(t, pool, "SELECT current_setting('server_version_num')::int"); v >= 140000 && w.Waiting <= 0 {
		t.Errorf("the waiter: %+v", w)
	}
	if p := of(pair); len(p) != 1 || !p[0].Shared || p[0].Name != "" || p[0].PID != h.PID {
		t.Errorf("the pair: %+v", p)
	}
	if p := of(advisory.KeyFromInt64(-1)); len(p) != 1 || p[0].PID != s.PID() || p[0].TransactionAge != 0 {
		t.Errorf("the session: %+v", p)
	}
	if err := before.Rollback(t.Context()); err != nil {
		t.Error(err)
	}
	if err := <-result; err != nil {
		t.Error(err)
	}
	if all, err := advisory.Inspect(t.Context(), waiter, nil); err != nil || len(all) != 2 || all[0].Name != "" {
		t.Errorf("%+v, %v", all, err)
	}
}
