package limits

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/internal/locktest"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/internal/testserver"
	"github.com/pglock/pglock-go/migrations"
	"github.com/pglock/pglock-go/pglock"
)

const (
	manyClients, shortClients = 1000, 40

	contenders = 32 // clients that want the same lock at a time

	// connectionsOfClient is how many connections a client needs: one for statements, and one that
	// listens, from the first wait on.
	connectionsOfClient = 2

	// spare is how many more connections the server gives all of them: a dial that takes longer than a
	// second gets company, so that on a busy machine each client at work may have another one.
	spare = 2 * contenders
)

// TestManyClients opens a thousand clients on one server, which gives each of them two connections.
// A lock passes through all of them. Then all close, and no connection is left. The control is a
// client too many: the server refuses it, and the error says why.
func TestManyClients(t *testing.T) { // not parallel: it measures the memory of the process
	clients := shortClients
	if long() {
		clients = manyClients
	}
	server := pgtest.Server(t, testserver.Options{Settings: map[string]string{
		"max_connections": fmt.Sprint(connectionsOfClient*clients + spare + 20), "superuser_reserved_connections": "10",
	}})
	admin := pgtest.PoolOn(t, server.URL(), func(c *pgxpool.Config) { c.MaxConns = 2 })
	if err := migrations.Up(t.Context(), admin); err != nil {
		t.Fatal(err)
	}
	locktest.Exec(t, admin, "CREATE ROLE app LOGIN PASSWORD 'poor'; SELECT pglock.grant_user('app')")
	locktest.Exec(t, admin, fmt.Sprintf("ALTER ROLE app CONNECTION LIMIT %d", connectionsOfClient*clients+spare))
	pool := pgtest.PoolOn(t, server.URL(), func(c *pgxpool.Config) { c.ConnConfig.User, c.ConnConfig.Password = "app", "poor" })
	connections := func() int {
		return locktest.Scan[int](t, admin, "SELECT count(*) FROM pg_stat_activity WHERE usename = 'app'")
	}
	before := inUse()
	began := time.Now()
	all := make([]*pglock.Client, clients)
	each := func(limit int, f func(i int)) {
		slots := make(chan struct{}, limit)
		var running sync.WaitGroup
		for i := range all {
			slots <- struct{}{}
			running.Go(func() { defer func() { <-slots }(); f(i) })
		}
		running.Wait()
	}
	each(16, func(i int) {
		var err error
		if all[i], err = pglock.Open(t.Context(), pool, pglock.WithLogger(nil)); err != nil {
			t.Error(err)
		}
	})
	if t.Failed() {
		t.FailNow()
	}
	t.Logf("%d clients opened in %v: %d connections, %d bytes each", clients, time.Since(began), connections(), (inUse()-before)/int64(clients))

	began = time.Now()
	var inside, grants atomic.Int64
	each(contenders, func(i int) {
		err := all[i].Do(t.Context(), "hot", func(context.Context, *pglock.Lease) error {
			if inside.Add(1) != 1 {
				t.Error("two holders")
			}
			grants.Add(1)
			inside.Add(-1)
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	})
	t.Logf("%d grants in %v: then %d connections, %d bytes each", grants.Load(), time.Since(began), connections(), (inUse()-before)/int64(clients))
	locktest.Exec(t, admin, fmt.Sprintf("ALTER ROLE app CONNECTION LIMIT %d", clients))
	if _, err := pglock.Open(t.Context(), pool); !errors.Is(err, pglock.ErrUnavailable) || !strings.Contains(err.Error(), "too many connections") {
		t.Errorf("control: a client too many: %v", err)
	}

	began = time.Now()
	each(64, func(i int) {
		if err := all[i].Close(t.Context()); err != nil {
			t.Error(err)
		}
	})
	t.Logf("closed in %v", time.Since(began))
	pgtest.Eventually(t, "no connection is left", func() bool { return connections() == 0 })
}

// inUse returns the bytes of heap and stacks that are in use.
func inUse() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapInuse + m.StackInuse)
}
