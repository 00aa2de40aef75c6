package pglock_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglock/pglock-go/internal/locktest"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/pglock"
)

// fillNotificationQueue fills the server's queue and keeps it full until drain is called: a listener
// in an open transaction reads nothing, and the queue keeps what one listener has not read.
func (f fixture) fillNotificationQueue() (drain func()) {
	f.t.Helper()
	conn, err := pgx.ConnectConfig(f.t.Context(), f.pool.Config().ConnConfig)
	must(f.t, err)
	pid := conn.PgConn().PID()
	drain = sync.OnceFunc(func() {
		_ = conn.Close(context.Background())
		until(f, "the listener is gone", 0, "SELECT count(*) FROM pg_stat_activity WHERE pid = $1", pid)
	})
	f.t.Cleanup(func() { _ = conn.Close(context.Background()) })
	for _, sql := range []string{"LISTEN filled", "BEGIN", "SELECT 1"} {
		if _, err := conn.Exec(f.t.Context(), sql); err != nil {
			f.t.Fatal(err)
		}
	}
	for n := 0; err == nil; n += 10 {
		if n > 10_000 {
			f.t.Fatal("the queue has no end")
		}
		// A notification is at most as long as a page. The server drops those that are equal.
		_, err = f.pool.Exec(f.t.Context(), "SELECT pg_notify('filled', lpad(i::text, 7900, '.')) FROM generate_series($1::int, $1::int + 9) i", n)
	}
	if !queueFull(err) {
		f.t.Fatalf("the queue could not be filled: %v", err)
	}
	return drain
}

func queueFull(err error) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && pg.Code == "54000" && strings.Contains(pg.Message, "NOTIFY queue")
}

// TestI10_FullNotificationQueue: while the server's notification queue is really full, locks of every
// kind are acquired, guarded and released, and waiters poll. It needs a server whose queue is small.
func TestI10_FullNotificationQueue(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	if pages := value[int](f, "SELECT coalesce(current_setting('max_notify_queue_pages', true), '1048576')::int"); pages > 256 {
		t.Skip("only on a server with a small notification queue, which other tests can't share: make matrix")
	}
	f.sql("CREATE TABLE pglock.counter AS SELECT 0 AS n")
	early := f.open() // its listener is connected before the queue is full
	holder := f.open(pglock.WithTTL(time.Minute))
	f.releaseToWaiter(holder, early, "before")
	// Without a listener, a notification that is missing proves nothing.
	pgtest.Eventually(t, "the listener is connected", func() bool { return pglock.Listening(early) })

	drain := f.fillNotificationQueue()
	full := func() bool {
		_, err := f.pool.Exec(t.Context(), "NOTIFY anything")
		return queueFull(err)
	}
	if !full() {
		t.Fatal("control: the server accepts a notification")
	}
	control := try(t, holder, "control")
	f.ghost("control")
	if _, err := f.pool.Exec(t.Context(), f.named("SELECT pglock.wake_next('control', 0, NULL)")); !queueFull(err) {
		t.Errorf("control: a release that insists on its notification: %v", err)
	}
	release(t, control)

	late := f.open() // its listener starts while the queue is full
	polling := f.open(pglock.WithPollOnly())
	for name, waiter := range map[string]*pglock.Client{"early": early, "late": late, "polling": polling} {
		for i := range 3 {
			f.releaseToWaiter(holder, waiter, fmt.Sprint(name, i))
		}
	}
	const rounds = 8
	kinds := map[string]func(*pglock.Client) (*pglock.Lease, error){
		"a lease": func(c *pglock.Client) (*pglock.Lease, error) { return c.Acquire(t.Context(), "counter") },
		"a permit": func(c *pglock.Client) (*pglock.Lease, error) {
			return c.Semaphore("one", 1).Acquire(t.Context())
		},
		"a writer": func(c *pglock.Client) (*pglock.Lease, error) { return rwlock(c, "rw").write.Acquire(t.Context()) },
		"two names": func(c *pglock.Client) (*pglock.Lease, error) {
			return locktest.All(c, "a", "b").Acquire(t.Context())
		},
	}
	for kind, acquire := range kinds {
		f.sql("UPDATE pglock.counter SET n = 0")
		var all sync.WaitGroup
		clients := []*pglock.Client{early, late, polling, holder}
		for _, c := range clients {
			all.Go(func() {
				for range rounds {
					f.count(c, acquire)
				}
			})
		}
		all.Wait()
		if n := value[int](f, "SELECT n FROM pglock.counter"); n != rounds*len(clients) {
			t.Errorf("%s: %d guarded writes, want %d", kind, n, rounds*len(clients))
		}
	}
	if !full() {
		t.Error("the queue is not full any more: then the above proves nothing")
	}

	drain()
	if !full() {
		t.Error("control: the queue is empty by itself")
	}
	// These clients send none for a minute after a refusal, and a new one does at once.
	f.releaseToWaiter(f.open(pglock.WithTTL(time.Minute)), early, "after")
	if full() {
		t.Error("the queue is still full although no session listens and reads nothing")
	}
	until(f, "the tickets are gone", 0, "SELECT count(*) FROM pglock.lock_waiters WHERE client <> 'ghost'")
}

// count adds one to the counter while the lock is held, by a read and a write that a guard protects.
func (f fixture) count(c *pglock.Client, acquire func(*pglock.Client) (*pglock.Lease, error)) {
	f.t.Helper()
	ctx := f.t.Context()
	l, err := acquire(c)
	if err != nil {
		f.t.Errorf("acquire: %v", err)
		return
	}
	err = pgx.BeginFunc(ctx, f.pool, func(tx pgx.Tx) error {
		if err := l.Guard(ctx, tx); err != nil {
			return err
		}
		var n int
		if err := tx.QueryRow(ctx, f.named("SELECT n FROM pglock.counter")).Scan(&n); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, f.named("UPDATE pglock.counter SET n = $1"), n+1)
		return err
	})
	check(f.t, errors.Join(err, l.Release(ctx)))
}

// releaseToWaiter has one client hold the lock, by leases that expire much later, and release it to
// another one that waits.
func (f fixture) releaseToWaiter(holder, waiter *pglock.Client, name string) {
	f.t.Helper()
	l := try(f.t, holder, name, pglock.WithTTL(time.Hour))
	got := f.waits(waiter, name)
	release(f.t, l)
	release(f.t, next(f.t, got))
}

// TestP45_AReleaseDoesNotNeedNotify: a role without the right to notify, also one that only polls,
// can release, revoke and leave the queue. Waiters poll.
func TestP45_AReleaseDoesNotNeedNotify(t *testing.T) {
	t.Parallel()
	for name, opts := range map[string][]pglock.Option{
		"listening":   nil,
		"polling":     {pglock.WithPollOnly()},
		"in batches":  {pglock.WithBatches(64, true)},
		"without any": {pglock.WithPollOnly(), pglock.WithRenewEvery(0)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := on(t, pgtest.Database(t))
			f.sql("REVOKE EXECUTE ON FUNCTION pg_catalog.pg_notify(text, text) FROM PUBLIC")
			var logged logBuffer
			opts := append([]pglock.Option{pglock.WithTTL(time.Minute), logged.option()}, opts...)
			holder, waiter := f.open(opts...), f.open(opts...)
			f.releaseToWaiter(holder, waiter, "n")
			if !strings.Contains(logged.String(), "refuses notifications") {
				t.Errorf("nothing of it is logged: %s", logged.String())
			}
			// A waiter that leaves while the lock is free notifies the next one.
			held := try(t, holder, "left")
			ctx, cancel := context.WithCancel(t.Context())
			left := leaving(ctx, waiter.Lock("left"))
			pgtest.Eventually(t, "it waits", func() bool { return f.tickets("left") == 1 })
			cancel()
			fails(t, "told", <-left, context.Canceled)
			pgtest.Eventually(t, "its row is removed", func() bool { return f.tickets("left") == 0 })
			release(t, held)
		})
	}
	t.Run("control: the release that notifies fails", func(t *testing.T) {
		t.Parallel()
		f := on(t, pgtest.Database(t))
		f.sql("REVOKE EXECUTE ON FUNCTION pg_catalog.pg_notify(text, text) FROM PUBLIC")
		c := f.open()
		l := try(t, c, "n")
		f.ghost("n")
		_, err := pgtest.UserPool(t, f.pool, f.schema).Exec(t.Context(), f.named("SELECT pglock.wake_next('n', 0, NULL)"))
		if err == nil || !strings.Contains(err.Error(), "pg_notify") {
			t.Errorf("notified: %v", err)
		}
		release(t, l)
	})
}

// TestP45_AReleaseDoesNotNeedRoomInTheQueue: when the server's notification queue is full, a
// statement that notifies fails when it commits.
func TestP45_AReleaseDoesNotNeedRoomInTheQueue(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	// 8 GiB of notifications would fill it. A trigger raises the same error when the statement
	// commits.
	f.sql(`CREATE FUNCTION pglock.full() RETURNS trigger LANGUAGE plpgsql AS $$
	       BEGIN
	           IF NEW.holder IS NULL AND EXISTS (SELECT FROM pglock.lock_waiters) AND current_setting('test.notified', true) = 'yes' THEN
	               RAISE EXCEPTION 'too many notifications in the NOTIFY queue' USING ERRCODE = '54000';
	           END IF;
	           RETURN NULL;
	       END $$`)
	f.sql(`CREATE CONSTRAINT TRIGGER full_queue AFTER UPDATE ON pglock.distributed_locks DEFERRABLE INITIALLY DEFERRED
	       FOR EACH ROW EXECUTE FUNCTION pglock.full()`)
	f.sql(`CREATE OR REPLACE FUNCTION pglock.wake_next(lock_name text, used_up bigint, room integer) RETURNS boolean LANGUAGE sql VOLATILE AS
	       $$ SELECT set_config('test.notified', 'yes', true) = 'yes' $$`)
	holder, waiter := f.open(), f.open()
	for i := range 3 {
		f.releaseToWaiter(holder, waiter, fmt.Sprint("n", i))
	}
}
