package pglock_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/internal/testserver"
	"github.com/pglock/pglock-go/pglock"
)

// waitFor waits in the background for a lock that another client holds.
func waitFor(t *testing.T, c *pglock.Client, name string, opts ...pglock.LeaseOption) <-chan *pglock.Lease {
	t.Helper()
	got := make(chan *pglock.Lease, 1)
	go func() {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		l, err := c.Acquire(ctx, name, opts...)
		if err != nil {
			t.Errorf("Acquire: %v", err)
		}
		got <- l
	}()
	pgtest.Eventually(t, 20*time.Second, "it waits", func() bool { return pglock.HeadWaits(c, name) })
	return got
}

// TestP15_ABusyPoolDelaysNoWaiter: the application's only connection is in a transaction during the
// whole life of the client. The client grants, waits for, renews, guards in that transaction, and
// releases leases.
func TestP15_ABusyPoolDelaysNoWaiter(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	pool := pgtest.UserPool(t, pgtest.Pool(t, func(c *pgxpool.Config) { c.MaxConns = 1 }), f.schema)
	tx, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.Background()) }()
	open := func() *pglock.Client {
		c, err := pglock.Open(t.Context(), pool, pglock.WithSchema(f.schema), pglock.WithTTL(2*time.Second))
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	ours, theirs := open(), open()
	held := acquire(t, ours, "n")
	got := waitFor(t, theirs, "n")
	rest(t, 3*time.Second) // more than the TTL
	if err := held.Err(); err != nil {
		t.Fatalf("with the pool's only connection busy: %v", err)
	}
	if err := held.Guard(t.Context(), tx); err != nil {
		t.Errorf("Guard in the transaction that has the connection: %v", err)
	}
	if err := tx.Rollback(t.Context()); err != nil { // ends the guard
		t.Fatal(err)
	}
	if tx, err = pool.Begin(t.Context()); err != nil {
		t.Fatal(err)
	}
	release(t, held)
	select {
	case l := <-got:
		if l != nil {
			release(t, l)
		}
	case <-time.After(20 * time.Second):
		t.Error("the waiter was not granted the lock")
	}
	for _, c := range []*pglock.Client{ours, theirs} {
		if err := c.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}
	if n := pool.Stat().AcquiredConns(); n != 1 {
		t.Errorf("%d connections of the pool are in use", n)
	}
}

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
	var all []*pglock.Lease
	for i := range 20 {
		all = append(all, acquire(t, ours, fmt.Sprint("n", i)))
	}
	got := waitFor(t, theirs, "n0")
	rest(t, 4*time.Second) // more than the TTL
	if pglock.Listening(theirs) {
		t.Error("there was a connection left to listen on")
	}
	for _, l := range all {
		if err := l.Err(); err != nil {
			t.Fatalf("without another connection: %v", err)
		}
		release(t, l)
	}
	select {
	case l := <-got:
		if l != nil {
			release(t, l)
		}
	case <-time.After(20 * time.Second):
		t.Error("the waiter was not granted the lock")
	}
	held := acquire(t, ours, "n0")
	got = waitFor(t, theirs, "n0")
	letGo()
	pgtest.Eventually(t, 30*time.Second, "it listens", func() bool { return pglock.Listening(theirs) })
	release(t, held)
	if l := <-got; l != nil {
		release(t, l)
	}
}
