package advisory_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/advisory"
	"github.com/pglock/pglock-go/internal/pgtest"
)

// TestInvalidArguments are ErrInvalidOption, and nothing is locked. The text names what is wrong.
func TestInvalidArguments(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	ctx, tx, key := t.Context(), begin(t, pool), advisory.NewKey("options", t.Name())
	var none *pgxpool.Pool
	do := func(o advisory.DoOption) error { return advisory.Do(ctx, pool, key, noWork, o) }
	lock := func(o advisory.LockOption) error { return advisory.Lock(ctx, tx, key, o) }
	acquire := func(o advisory.SessionOption) error { return second(advisory.Acquire(ctx, pool, key, o)) }
	type row struct {
		err  error
		text string
	}
	rows := []row{
		{lock(advisory.WithTimeout(0)), "0s"}, {lock(advisory.WithTimeout(-time.Hour)), "-1h0m0s"},
		{do(advisory.WithTimeout(-1)), "-1ns"}, {do(advisory.WithPoolWait(0)), "0s"}, {do(advisory.WithRetry(-1)), "-1 retries"},
		{do(advisory.WithIsolation("snapshot; DROP TABLE x")), "snapshot; DROP"},
		{acquire(advisory.WithTimeout(-time.Second)), "-1s"}, {acquire(advisory.WithPoolWait(-1)), "-1ns"},
		{acquire(advisory.WithKeepAliveTimeout(99 * time.Millisecond)), "99ms"},
		{advisory.Do(ctx, pool, key, nil), "function"}, {advisory.Do(ctx, nil, key, noWork), "database"},
		{advisory.Do(ctx, none, key, noWork), "database"}, {second(advisory.TryAcquire(ctx, nil, key)), "pool"},
	}
	for _, bad := range []advisory.Key{
		advisory.NewKey("", "x"), advisory.NewKey("x", ""), advisory.NewKey("", ""),
		advisory.NewKey("x", "\xff"), advisory.NewKey("\xff", "x"), advisory.NewKey("x", "a\x00b"),
	} {
		rows = append(rows, row{advisory.Lock(ctx, tx, bad), "name"}, row{advisory.TryLock(ctx, tx, bad), "name"},
			row{advisory.LockAll(ctx, tx, []advisory.Key{key, bad}), "name"}, row{advisory.Do(ctx, pool, bad, noWork), "name"},
			row{do(advisory.WithKeys(bad)), "name"}, row{second(advisory.Acquire(ctx, pool, bad)), "name"})
	}
	for i, r := range rows {
		if !errors.Is(r.err, advisory.ErrInvalidOption) || !strings.Contains(r.err.Error(), r.text) {
			t.Errorf("row %d, %q: %v", i, r.text, r.err)
		}
	}
	done, cancel := context.WithCancel(ctx)
	cancel()
	for what, err := range map[string]error{"Lock": advisory.Lock(done, tx, key), "TryLock": advisory.TryLock(done, tx, key)} {
		if !isAll(err, advisory.ErrNotAcquired, context.Canceled) {
			t.Errorf("%s with a context that is done: %v", what, err)
		}
	}
	if held(t, tx) != 0 {
		t.Error("something was locked")
	}
}
