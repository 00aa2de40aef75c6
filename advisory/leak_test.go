package advisory_test

import (
	"errors"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/advisory"
	"github.com/pglock/pglock-go/internal/pgtest"
)

// TestI9_BusyTriesReuseTheirConnection: who does not get the lock leaves no session behind in the server.
func TestI9_BusyTriesReuseTheirConnection(t *testing.T) {
	t.Parallel()
	direct := pgtest.Pool(t)
	name := "tries of " + t.Name()
	pool := pgtest.Pool(t, func(c *pgxpool.Config) {
		c.MaxConns = 2
		c.ConnConfig.RuntimeParams["application_name"] = name
	})
	key := advisory.NewKey("leak", t.Name())
	before := holder(t, direct, key)
	for range 12 {
		if _, err := advisory.TryAcquire(t.Context(), pool, key); !errors.Is(err, advisory.ErrNotAcquired) {
			t.Fatalf("%v", err)
		}
	}
	if n := count(t, direct, "SELECT count(*) FROM pg_stat_activity WHERE application_name = $1", name); n > 2 {
		t.Errorf("%d sessions", n)
	}
	if err := before.Rollback(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestNotAcquiredNamesEachKeyOnce, in the order in which they are locked, and leaves the caller's list alone.
func TestNotAcquiredNamesEachKeyOnce(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	a, b, pair := advisory.KeyFromInt64(8_001), advisory.KeyFromInt64(8_002), advisory.KeyFromInt32s(0, 1)
	holder(t, pool, b)
	given := []advisory.Key{pair, b, a, b}
	err := advisory.LockAllWith(soon(t, 1), begin(t, pool), given, advisory.WithPolling())
	var failed *advisory.NotAcquiredError
	if !errors.As(err, &failed) || len(failed.Keys) != 3 || failed.Keys[0] != a || failed.Keys[1] != b || failed.Keys[2] != pair {
		t.Errorf("%v", err)
	}
	if given[0] != pair || given[2] != a {
		t.Errorf("the caller's list is %v", given)
	}
}
