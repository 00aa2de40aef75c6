package pglock_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/pglock"
)

// open returns a client on a schema of its own.
func open(t *testing.T, opts ...pglock.Option) *pglock.Client {
	t.Helper()
	pool := pgtest.Pool(t)
	c, err := pglock.Open(t.Context(), pool, append([]pglock.Option{pglock.WithSchema(pgtest.Schema(t, pool))}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(context.Background()); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return c
}

func TestDoHoldsTheLockAndReleasesIt(t *testing.T) {
	t.Parallel()
	c := open(t)
	err := c.Do(t.Context(), "n", func(ctx context.Context, l *pglock.Lease) error {
		if k, err := c.Get(ctx, "n"); err != nil || !k.Held() || k.Token != l.Token() {
			t.Errorf("during Do the table has %+v, %v", k, err)
		}
		_, err := c.TryAcquire(ctx, "n")
		var busy *pglock.BusyError
		if !errors.As(err, &busy) || busy.Token != l.Token() || busy.Remaining <= 0 || busy.Remaining > 30*time.Second {
			t.Errorf("a second try got %v", err)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if k, err := c.Get(t.Context(), "n"); err != nil || k.Held() {
		t.Errorf("after Do the table has %+v, %v", k, err)
	}
}
