package main

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/pglocktest"
	"github.com/pglock/pglock-go/pglock/schedule"
)

// TestOneBackupPerNight of two replicas. In the first night, the replica that makes it loses its lock. In the
// second night, the database is unavailable at three.
func TestOneBackupPerNight(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		locks := pglocktest.Fake(t)
		type backup struct {
			night, began time.Time
			lease        *pglock.Lease
			finish       chan bool
		}
		backups := make(chan backup)
		work := func(ctx context.Context, l *pglock.Lease) error {
			night, _ := schedule.TickFromContext(ctx)
			b := backup{night, time.Now(), l, make(chan bool)}
			backups <- b
			select {
			case <-ctx.Done():
				return context.Cause(ctx)
			case <-b.finish:
				return nil
			}
		}
		for _, client := range []*pglock.Client{locks.Client, locks.Open()} {
			scheduler, err := newScheduler(client, work)
			if err != nil {
				t.Fatal(err)
			}
			scheduler.Start()
			defer func() {
				if err := scheduler.Shutdown(); err != nil {
					t.Error(err)
				}
			}()
		}
		require := func(night string, began string) backup {
			t.Helper()
			b := <-backups
			if got := b.night.Format(time.DateOnly); got != night || b.began.Format(time.DateTime) != began {
				t.Fatalf("the backup of %s began at %s, want that of %s at %s", got, b.began, night, began)
			}
			return b
		}
		require("1999-12-31", "2000-01-01 00:05:00").finish <- true // no replica has ever run
		lost := require("2000-01-01", "2000-01-01 03:00:00")
		locks.Lose(lost.lease)
		require("2000-01-01", "2000-01-01 03:00:00").finish <- true // the other replica waits for the lock
		<-time.After(24*time.Hour - time.Minute)
		restore := locks.Unavailable()
		<-time.After(2 * time.Minute)
		restore()
		require("2000-01-02", "2000-01-02 03:05:00").finish <- true
	})
}
