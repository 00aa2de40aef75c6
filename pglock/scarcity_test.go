package pglock_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/internal/testserver"
	"github.com/pglock/pglock-go/pglock"
)

// exhaust opens all connections that the server gives to ordinary roles. It returns a function that
// closes them.
func (f fixture) exhaust() (letGo func()) {
	f.t.Helper()
	config := pgtest.UserPool(f.t, f.pool, f.schema).Config().ConnConfig
	var all []*pgx.Conn
	letGo = func() {
		for _, conn := range all {
			_ = conn.Close(context.Background())
		}
		all = nil
	}
	f.t.Cleanup(letGo)
	for range 100 {
		conn, err := pgx.ConnectConfig(f.t.Context(), config.Copy())
		var pg *pgconn.PgError
		switch {
		case errors.As(err, &pg) && pg.Code == "53300": // too_many_connections
			return letGo
		case err != nil:
			f.t.Fatal(err)
		}
		all = append(all, conn)
	}
	f.t.Fatal("the server has connections for everybody")
	return nil
}

// TestTheServersLastConnection: other clients use up max_connections. The client works with its
// single connection, and its waiters poll. When there is room again, it listens.
func TestTheServersLastConnection(t *testing.T) {
	t.Parallel()
	server := pgtest.Server(t, testserver.Options{Settings: map[string]string{"max_connections": "14"}})
	f := on(t, server.URL())
	ours, theirs := f.open(pglock.WithTTL(3*time.Second)), f.open(pglock.WithTTL(3*time.Second))
	release(t, try(t, theirs, "n"))
	letGo := f.exhaust()
	all := make([]*pglock.Lease, 20)
	var callers sync.WaitGroup
	for i := range all { // at the same time, so that the client wants more connections
		callers.Go(func() { all[i] = acquire(t, ours, fmt.Sprint("n", i)) })
	}
	callers.Wait()
	got := f.waits(theirs, "n0")
	rest(t, 4*time.Second) // more than the TTL
	if pglock.Listening(theirs) {
		t.Error("there was a connection left to listen on")
	}
	for _, l := range all {
		must(t, l.Err())
		release(t, l)
	}
	release(t, next(t, got))
	held := acquire(t, ours, "n0")
	got = f.waits(theirs, "n0")
	letGo()
	pgtest.Eventually(t, "it listens", func() bool { return pglock.Listening(theirs) })
	release(t, held)
	release(t, next(t, got))
}

// mostWaiting bounds the bytes of a waiting call, whose stack fits into 4 KiB. See awaitHead.
var mostWaiting = 8000

// TestManyWaiters lets 5,000 goroutines wait for one name in one process, in the long form 100,000: with
// one ticket, few connections, no transaction, and calls for other names beside them (I6, P15, P18). The
// lock passes among them. Then most leave, while it passes on. All that stay acquire the lock.
func TestManyWaiters(t *testing.T) {
	t.Parallel()
	waiters, stayers := 5000, 50
	if os.Getenv("PGLOCK_CHAOS") != "" {
		waiters, stayers = 100_000, 1000
	}
	f := on(t, pgtest.Database(t))
	c := f.open(pglock.WithMaxConns(3))
	held := try(t, f.open(), "n")
	leavers, leave := context.WithCancel(t.Context())
	defer leave()
	before, began := inUse(), time.Now()
	var served, stayed atomic.Int32
	var wg sync.WaitGroup
	for i := range waiters {
		ctx, stays := leavers, i%(waiters/stayers) == 0
		if stays {
			ctx = t.Context()
		}
		wg.Go(func() {
			l, err := c.Acquire(ctx, "n")
			switch {
			case err == nil:
				served.Add(1)
				if stays {
					stayed.Add(1)
				}
				release(t, l)
			case !errors.Is(err, context.Canceled):
				t.Error(err)
			}
		})
	}
	pgtest.Eventually(t, "all wait", func() bool {
		return pglock.Waiting(c, "n") == waiters && f.tickets("n") == 1
	})
	each := (inUse() - before) / waiters
	t.Logf("%d wait after %v, with %d bytes each", waiters, time.Since(began), each)
	if each > mostWaiting {
		t.Errorf("a waiting call needs %d bytes, at most %d: its stack of 4 KiB has grown to 8", each, mostWaiting)
	}
	for range 20 {
		release(t, try(t, c, "other"))
	}
	const sessions = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE '%pglock%'"
	if n := value[int](f, sessions); n > 6 { // with the other client's, and the listening one
		t.Errorf("%d connections of two clients", n)
	}
	until(f, "a moment in which nobody is in a transaction", 0, sessions+" AND state <> 'idle'")
	began = time.Now()
	release(t, held)
	pgtest.Eventually(t, "the lock passes", func() bool { return int(served.Load()) >= stayers })
	t.Logf("%d grants while they wait, %v each", served.Load(), time.Since(began)/time.Duration(served.Load()))
	began = time.Now()
	leave()
	wg.Wait()
	t.Logf("all are gone after %v, %d of them with the lock", time.Since(began), served.Load())
	if n := int(stayed.Load()); n != stayers {
		t.Errorf("%d of %d who stayed were served", n, stayers)
	}
	if n := pglock.Waiting(c, "n"); n != 0 {
		t.Errorf("%d still wait", n)
	}
	pgtest.Eventually(t, "no ticket is left", func() bool { return f.tickets("n") == 0 })
}

// inUse returns the bytes of heap and stacks that the process uses.
func inUse() int {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int(m.HeapInuse + m.StackInuse)
}
