package pglock_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/internal/testserver"
)

// TestI2_P07_TokensOutliveAFailoverThatLosesGrants promotes an asynchronous standby
// that was cut off before the last thousand grants.
func TestI2_P07_TokensOutliveAFailoverThatLosesGrants(t *testing.T) {
	t.Parallel()
	const grants = 1000
	primary := pgtest.Server(t, testserver.Options{})
	f := on(t, primary.URL())
	c := f.openUnclosed()
	release(t, try(t, c, "n"))

	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	standby := pgtest.Standby(t, primary)
	release(t, try(t, c, "n"))
	there := fixture{t, pgtest.PoolOn(t, standby.URL()), f.schema}
	replicated := int64(0)
	pgtest.Eventually(t, 20*time.Second, "the standby follows", func() bool {
		replicated = value[int64](there, "SELECT token FROM pglock.distributed_locks WHERE name = 'n'")
		return replicated == value[int64](f, "SELECT token FROM pglock.distributed_locks WHERE name = 'n'")
	})

	// Cut it off in both directions.
	there.sql("ALTER SYSTEM SET primary_conninfo = ''")
	there.sql("SELECT pg_reload_conf()")
	pgtest.Eventually(t, 20*time.Second, "the standby is cut off", func() bool {
		return value[int](f, "SELECT count(*) FROM pg_stat_replication") == 0
	})
	var last int64
	for i := range grants {
		l := try(t, c, fmt.Sprint("n", i%10))
		last = int64(l.Token())
		release(t, l)
	}
	if err := c.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if err := primary.Stop(testserver.Immediate); err != nil {
		t.Fatal(err)
	}
	if err := standby.Promote(ctx); err != nil {
		t.Fatal(err)
	}
	// The control: the next value of the sequence alone.
	if plain := value[int64](there, "SELECT last_value FROM pglock.fencing_tokens"); plain > last {
		t.Errorf("control: the sequence alone is at %d, above the %d granted", plain, last)
	}
	first := try(t, there.open(), "n0")
	t.Logf("I2: replicated up to %d, then granted up to %d; the promoted standby grants %d", replicated, last, first.Token())
	if int64(first.Token()) <= last {
		t.Errorf("after the promotion token %d was granted, before it %d", first.Token(), last)
	}
	release(t, first)
}
