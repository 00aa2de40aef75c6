package leasetable_test

import (
	"context"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/leasetable"
)

// TestI1_P42_ExclusionAcrossClients has workers of several clients read a counter and
// write it back one higher, in two statements. Without the lock updates are lost.
func TestI1_P42_ExclusionAcrossClients(t *testing.T) {
	t.Parallel()
	const clients, workers, rounds = 4, 5, 8
	f := newFixture(t)
	var all []*leasetable.Client
	for range clients {
		all = append(all, f.open())
	}
	final := func(name string, locked bool) int {
		f.sql("CREATE TABLE pglock." + name + " (n int)")
		f.sql("INSERT INTO pglock." + name + " VALUES (0)")
		pool := pgtest.Pool(t, func(c *pgxpool.Config) { c.MaxConns = 20 })
		increment := func(ctx context.Context) error {
			var n int
			if err := pool.QueryRow(ctx, f.named("SELECT n FROM pglock."+name)).Scan(&n); err != nil {
				return err
			}
			_, err := pool.Exec(ctx, f.named("UPDATE pglock."+name+" SET n = $1"), n+1)
			return err
		}
		var wg sync.WaitGroup
		for i := range clients * workers {
			wg.Go(func() {
				for range rounds {
					if !locked {
						if err := increment(t.Context()); err != nil {
							t.Error(err)
						}
						continue
					}
					l, err := all[i%clients].Acquire(t.Context(), "counter")
					if err != nil {
						t.Error(err)
						return
					}
					if err := increment(l.Context()); err != nil {
						t.Error(err)
					}
					if err := l.Release(t.Context()); err != nil {
						t.Error(err)
					}
				}
			})
		}
		wg.Wait()
		return value[int](f, "SELECT n FROM pglock."+name)
	}
	const want = clients * workers * rounds
	if n := final("locked", true); n != want {
		t.Errorf("with the lock %d of %d updates are there", n, want)
	}
	// P42: the control. If nothing is lost here, the test above shows nothing.
	if n := final("control", false); n == want {
		t.Errorf("control: no update was lost without the lock")
	}
	if tokens := value[int64](f, "SELECT max(token) FROM pglock.distributed_locks"); tokens < want {
		t.Errorf("%d grants drew tokens up to %d only", want, tokens)
	}
}
