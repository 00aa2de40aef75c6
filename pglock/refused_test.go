package pglock_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/pglock"
)

// releaseToWaiter has one client hold the lock and another wait for it. It returns how long the
// release took, and then the waiter.
func (f fixture) releaseToWaiter(holder, waiter *pglock.Client, name string) (released, granted time.Duration) {
	f.t.Helper()
	held := try(f.t, holder, name)
	got := make(chan *pglock.Lease, 1)
	go func() { got <- acquire(f.t, waiter, name) }()
	pgtest.Eventually(f.t, 10*time.Second, "it waits", func() bool { return pglock.HeadWaits(waiter, name) })
	began := time.Now()
	if err := held.Release(f.t.Context()); err != nil {
		f.t.Errorf("Release: %v", err)
	}
	released = time.Since(began)
	l := <-got
	granted = time.Since(began)
	release(f.t, l)
	return released, granted
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
			if released, granted := f.releaseToWaiter(holder, waiter, "n"); released > time.Second || granted > 3*time.Second {
				t.Errorf("released after %v, granted after %v", released, granted)
			}
			if !strings.Contains(logged.String(), "refuses notifications") {
				t.Errorf("nothing of it is logged: %s", logged.String())
			}
			// A waiter that leaves while the lock is free notifies the next one.
			held := try(t, holder, "left")
			ctx, cancel := context.WithCancel(t.Context())
			left := make(chan error)
			go func() { _, err := waiter.Acquire(ctx, "left"); left <- err }()
			pgtest.Eventually(t, 10*time.Second, "it waits", func() bool { return f.tickets("left") == 1 })
			cancel()
			if err := <-left; !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
			pgtest.Eventually(t, 5*time.Second, "its row is removed", func() bool { return f.tickets("left") == 0 })
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
		_, err := pgtest.UserPool(t, f.pool, f.schema).Exec(t.Context(), f.named("SELECT pglock.wake_next('n', 0)"))
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
	f.sql(`CREATE OR REPLACE FUNCTION pglock.wake_next(lock_name text, used_up bigint) RETURNS boolean LANGUAGE sql VOLATILE AS
	       $$ SELECT set_config('test.notified', 'yes', true) = 'yes' $$`)
	holder, waiter := f.open(pglock.WithTTL(time.Minute)), f.open()
	for i := range 3 {
		if released, granted := f.releaseToWaiter(holder, waiter, fmt.Sprint("n", i)); released > time.Second || granted > 3*time.Second {
			t.Errorf("released after %v, granted after %v", released, granted)
		}
	}
}
