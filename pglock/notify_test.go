package pglock_test

import (
	"cmp"
	"context"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/pglock"
)

// TestP25_OnlyTheHeadIsNotified: a release notifies the client of the smallest valid ticket, and
// without waiters no client. The same holds for a waiter that leaves while the lock is free, in
// each form of the release statements.
func TestP25_OnlyTheHeadIsNotified(t *testing.T) {
	t.Parallel()
	for name, opts := range map[string][]pglock.Option{
		"alone": nil, "together": {pglock.WithBatches(64, true)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			c := f.open(opts...)
			notified := f.listen("first", "second", "expired", "invalid")
			for _, n := range []string{"waited for", "not waited for"} {
				l := try(t, c, n)
				if n == "waited for" {
					for _, sql := range []string{
						"INSERT INTO pglock.lock_waiters VALUES ($1, $2 || 'expired', pglock.next_fencing_token(), clock_timestamp() - interval '1 s')",
						"INSERT INTO pglock.lock_waiters VALUES ($1, $2 || 'invalid', 0, clock_timestamp() + interval '1 h')",
						"INSERT INTO pglock.lock_waiters VALUES ($1, $2 || 'first', pglock.next_fencing_token(), clock_timestamp() + interval '1 h')",
						"INSERT INTO pglock.lock_waiters VALUES ($1, $2 || 'second', pglock.next_fencing_token(), clock_timestamp() + interval '1 h')",
					} {
						f.sql(sql, n, f.schema)
					}
				}
				release(t, l)
			}
			if got := notified(); !slices.Equal(got, []string{"first: waited for"}) {
				t.Errorf("notified: %q", got)
			}
		})
	}
}

// TestReleaseBatch tests the batch release statement by itself: if it fails, the client sends each
// release alone, and no other test would notice.
func TestReleaseBatch(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.openUnclosed()
	defer func() { _ = c.Close(context.WithoutCancel(t.Context())) }() // its leases are released below
	var names []string
	var tokens []int64
	for _, n := range []string{"not waited for", "waited for", "waited for by a dead one"} {
		l := try(t, c, n)
		names, tokens = append(names, n), append(tokens, int64(l.Token()))
	}
	notified := f.listen("first", "expired")
	f.sql("INSERT INTO pglock.lock_waiters VALUES ($1, $2 || 'first', pglock.next_fencing_token(), clock_timestamp() + interval '1 h')", names[1], f.schema)
	f.sql("INSERT INTO pglock.lock_waiters VALUES ($1, $2 || 'expired', pglock.next_fencing_token(), clock_timestamp() - interval '1 s')", names[2], f.schema)
	rows, err := f.pool.Query(t.Context(), f.named(pglock.ReleaseBatchSQL), append(names, "unknown"), append(tokens, 1), true)
	if err != nil {
		t.Fatal(err)
	}
	type released struct {
		Name     string
		Token    int64
		Notified bool
	}
	got, err := pgx.CollectRows(rows, pgx.RowToStructByPos[released])
	if err != nil {
		t.Fatal(err)
	}
	slices.SortFunc(got, func(a, b released) int { return cmp.Compare(a.Name, b.Name) })
	if want := []released{{names[0], tokens[0], false}, {names[1], tokens[1], true}, {names[2], tokens[2], false}}; !slices.Equal(got, want) {
		t.Errorf("released %v, want %v", got, want)
	}
	if got := notified(); !slices.Equal(got, []string{"first: " + names[1]}) {
		t.Errorf("notified: %q", got)
	}
}

// TestALeavingWaiterWakesTheNext: the notification may have come to the one that leaves.
func TestALeavingWaiterWakesTheNext(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	holder := f.open()
	held := try(t, holder, "n")
	c := f.open()
	ctx, cancel := context.WithCancel(t.Context())
	left := make(chan error)
	go func() { _, err := c.Acquire(ctx, "n"); left <- err }()
	pgtest.Eventually(t, 10*time.Second, "it waits", func() bool { return f.tickets("n") == 1 })
	notified := f.listen("next")
	f.sql("INSERT INTO pglock.lock_waiters VALUES ('n', $1 || 'next', pglock.next_fencing_token(), clock_timestamp() + interval '1 h')", f.schema)
	tx, err := f.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.Background()) }()
	if err := held.Guard(t.Context(), tx); err != nil { // so that no client gets the lock
		t.Fatal(err)
	}
	release(t, held)
	cancel()
	if err := <-left; err == nil {
		t.Error("granted during a guarded transaction")
	}
	pgtest.Eventually(t, 10*time.Second, "it has left", func() bool { return f.tickets("n") == 1 })
	if got := notified(); !slices.Contains(got, "next: n") {
		t.Errorf("notified: %q", got)
	}
}

// listen listens on channels. It returns a function that returns the notifications since then,
// without those of other tests.
func (f fixture) listen(channels ...string) (notified func() []string) {
	f.t.Helper()
	conn, err := pgx.Connect(f.t.Context(), f.pool.Config().ConnString())
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() { _ = conn.Close(context.Background()) })
	for _, channel := range append(channels, "end") {
		if _, err := conn.Exec(f.t.Context(), "LISTEN "+pgx.Identifier{f.schema + channel}.Sanitize()); err != nil {
			f.t.Fatal(err)
		}
	}
	return func() (all []string) {
		f.t.Helper()
		f.sql("SELECT pg_notify($1 || 'end', '')", f.schema) // arrives after all notifications before it
		for {
			n, err := conn.WaitForNotification(f.t.Context())
			if err != nil {
				f.t.Fatal(err)
			}
			if n.Channel == f.schema+"end" {
				return all
			}
			all = append(all, n.Channel[len(f.schema):]+": "+n.Payload)
		}
	}
}
