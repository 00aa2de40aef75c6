package main

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/pglocktest"
	"github.com/pglock/pglock-go/pglock/schedule"
)

// TestOneReportPerNight of two replicas, of which one loses its lock while it writes. The clock of the bubble
// lets the nights pass at once.
func TestOneReportPerNight(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		locks := pglocktest.Fake(t)
		type run struct {
			night  time.Time
			lease  *pglock.Lease
			finish chan bool
		}
		runs := make(chan run)
		work := func(ctx context.Context, l *pglock.Lease) error {
			night, _ := schedule.TickFromContext(ctx)
			r := run{night, l, make(chan bool)}
			runs <- r
			select {
			case <-ctx.Done(): // the lock was lost
				return context.Cause(ctx)
			case <-r.finish:
				return nil
			}
		}
		ctx, stop := context.WithCancel(t.Context())
		var replicas sync.WaitGroup
		for _, client := range []*pglock.Client{locks.Client, locks.Open()} {
			replicas.Go(func() {
				if err := nightly(ctx, client, schedule.Daily("03:00", time.UTC), work); err != nil {
					t.Error(err)
				}
			})
		}
		first := <-runs
		locks.Lose(first.lease)
		second := <-runs
		if !second.night.Equal(first.night) {
			t.Errorf("the night of %s was not taken over, but followed by that of %s", first.night, second.night)
		}
		second.finish <- true
		third := <-runs // neither replica repeats a night that is done
		if want := first.night.AddDate(0, 0, 1); !third.night.Equal(want) || time.Now().Before(want) {
			t.Errorf("the night of %s is followed by that of %s, at %s", first.night, third.night, time.Now())
		}
		third.finish <- true
		synctest.Wait()
		stop()
		replicas.Wait()
	})
}

// TestALateReportIsRefused: the replica was suspended before it writes, and does not know that.
func TestALateReportIsRefused(t *testing.T) {
	t.Parallel()
	locks := pglocktest.New(t, nil)
	pool := newPool(t, locks, table)
	job, err := schedule.New(locks.Client, "nightly-report", schedule.WithLogger(nil))
	if err != nil {
		t.Fatal(err)
	}
	var late error
	err = job.Once(t.Context(), time.Now(), func(ctx context.Context, l *pglock.Lease) error {
		locks.Pause(l)
		late = report(pool)(ctx, l)
		locks.Lose(l) // as with its next renewal
		return late
	})
	var rows int
	if err := pool.QueryRow(t.Context(), "SELECT count(*) FROM nightly_reports").Scan(&rows); err != nil {
		t.Fatal(err)
	}
	if !errors.Is(late, pglock.ErrStale) || !errors.Is(err, pglock.ErrLost) || rows != 0 {
		t.Errorf("a late report: %v, the job: %v, %d rows", late, err, rows)
	}
}
