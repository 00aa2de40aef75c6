package pglock_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglock/pglock-go/advisory"
	"github.com/pglock/pglock-go/fencing"
	"github.com/pglock/pglock-go/internal/locktest"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/observe"
)

// TestObserverOfRefusedWrites: each refusal is one result, and a guard that succeeds is none.
func TestObserverOfRefusedWrites(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.sql("CREATE TABLE pglock.accounts (id int PRIMARY KEY)")
	must(t, fencing.Protect(t.Context(), f.pool, f.named("pglock.accounts"), fencing.WithSchema(f.schema)))
	insert := f.named("INSERT INTO pglock.accounts VALUES (1)")
	other := func(l *pglock.Lease) { // the server grants the lock to another holder
		f.sql("UPDATE pglock.distributed_locks SET token = pglock.next_fencing_token(), holder = 'thief' WHERE name = $1", l.Name())
	}
	nothing := func(*pglock.Lease) {}
	for name, tc := range map[string]struct {
		before func(l *pglock.Lease)
		write  func(ctx context.Context, l *pglock.Lease, tx pgx.Tx) error
		want   string
	}{
		"a guard":               {nothing, func(ctx context.Context, l *pglock.Lease, tx pgx.Tx) error { return l.Guard(ctx, tx) }, ""},
		"a stale guard":         {other, func(ctx context.Context, l *pglock.Lease, tx pgx.Tx) error { return l.Guard(ctx, tx) }, "stale"},
		"a stale bind":          {other, func(ctx context.Context, l *pglock.Lease, tx pgx.Tx) error { return l.Bind(ctx, tx) }, "stale"},
		"a guard after the end": {func(l *pglock.Lease) { release(t, l) }, func(ctx context.Context, l *pglock.Lease, tx pgx.Tx) error { return l.Guard(ctx, tx) }, "stale"},
		"a write without a bind": {nothing, func(ctx context.Context, _ *pglock.Lease, tx pgx.Tx) error {
			_, err := tx.Exec(ctx, insert)
			return err
		}, "unfenced"},
		"another error":            {nothing, func(context.Context, *pglock.Lease, pgx.Tx) error { return errors.New("another") }, ""},
		"a call of the fence only": {other, func(ctx context.Context, l *pglock.Lease, tx pgx.Tx) error { return fencing.Check(ctx, tx, l.Fence()) }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var r locktest.Results
			c := f.open(r.Observer(), pglock.WithLogger(nil))
			_ = c.Do(t.Context(), name, func(ctx context.Context, l *pglock.Lease) error {
				tc.before(l)
				return tc.write(context.WithoutCancel(ctx), l, begin(t, f))
			})
			all, got := r.Of(observe.KindGuard)
			if got != tc.want {
				t.Errorf("%q, want %q", got, tc.want)
			}
			for _, e := range all {
				if e.Name != name || e.Token == 0 || e.Err == nil {
					t.Errorf("%+v", e)
				}
			}
		})
	}
}

// TestObserverOfDoTx: a call in a call for the same name times out.
func TestObserverOfDoTx(t *testing.T) {
	t.Parallel()
	var r locktest.Results
	c := newFixture(t).open(r.Observer())
	own := errors.New("the function's")
	err := c.DoTx(t.Context(), "n", func(ctx context.Context, _ pgx.Tx) error {
		fails(t, "busy", c.DoTx(ctx, "n", nothingTx, advisory.WithTimeout(20*time.Millisecond)), pglock.ErrTimeout)
		return own
	})
	fails(t, "the function", err, own)
	check(t, c.DoTx(t.Context(), "n", nothingTx))
	all, got := r.Of(observe.KindTx)
	if got != "timeout failed done" {
		t.Fatal(got)
	}
	for i, e := range all {
		if e.Name != "n" || e.Duration <= 0 || (e.Err == nil) != (i == 2) {
			t.Errorf("%+v", e)
		}
	}
}

func nothingTx(context.Context, pgx.Tx) error { return nil }

// TestObserverOfTheListener: it begins for a waiter, is lost with its connection, and ends with the client.
func TestObserverOfTheListener(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	proxy, _ := f.proxied()
	var r, never locktest.Results
	c := f.openUnclosed(r.Observer(), pglock.WithListener(proxy.URL(pgtest.URL(t))), pglock.WithLogger(nil))
	unreachable := f.open(never.Observer(), pglock.WithListener("host=127.0.0.1 port=1 connect_timeout=1"), pglock.WithLogger(nil))
	held := try(t, f.open(), "n")
	for _, c := range []*pglock.Client{c, unreachable} {
		go func() { _, _ = c.Acquire(t.Context(), "n") }()
	}
	is := func(r *locktest.Results, want string) {
		t.Helper()
		pgtest.Eventually(t, want, func() bool { _, got := r.Of(observe.KindListener); return got == want })
	}
	is(&r, "began")
	proxy.Sever()
	is(&r, "began lost began")
	pgtest.Eventually(t, "a failure", func() bool { _, got := never.Of(observe.KindListener); return len(got) > 0 })
	must(t, c.Close(t.Context()))
	is(&r, "began lost began ended")
	if all, got := never.Of(observe.KindListener); all[0].Outcome != observe.OutcomeFailed || all[0].Err == nil {
		t.Error(got)
	}
	release(t, held)
}
