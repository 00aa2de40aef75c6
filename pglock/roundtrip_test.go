package pglock_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglock/pglock-go/advisory"
	"github.com/pglock/pglock-go/internal/pgtest"
)

// TestDoTxTakesTwoRoundTrips: after the statements are prepared, DoTx takes one round trip before
// the function and one after it.
func TestDoTxTakesTwoRoundTrips(t *testing.T) {
	t.Parallel()
	f := newApp(t)
	c := f.openOn(pgtest.Pool(t, pgtest.CountTurns))
	for what, opts := range map[string][]advisory.DoOption{
		"plain": nil, "with a time-out": {advisory.WithTimeout(time.Minute)}, "serializable": {advisory.WithIsolation(pgx.Serializable)},
	} {
		var used *pgx.Conn
		for range 2 { // the first one prepares
			var began, then int64
			if used != nil {
				began = pgtest.Turns(t, used)
			}
			if err := c.DoTx(t.Context(), "n", func(_ context.Context, tx pgx.Tx) error {
				used, then = tx.Conn(), pgtest.Turns(t, tx.Conn())
				return nil
			}, opts...); err != nil {
				t.Fatal(err)
			}
			if after := pgtest.Turns(t, used) - then; began > 0 && (then-began != 1 || after != 1) {
				t.Errorf("%s: %d round trips before the function, %d after it", what, then-began, after)
			}
		}
	}
}
