package adapters_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/pglock/pglock-go/internal/locktest"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/schedule"
	"github.com/pglock/pglock-go/pglock/schedule/cronlock"
	"github.com/pglock/pglock-go/pglock/schedule/gocronlock"
)

// TestI3_RunContextsCheckTheClock: after a pause that lasts past the lease's deadline, the first
// look at the work's context reports the loss, although no timer has run yet.
func TestI3_RunContextsCheckTheClock(t *testing.T) {
	t.Parallel()
	const ttl = time.Second
	// look waits until the deadline has passed, and then looks at the context for the first time.
	look := func(t *testing.T, ctx context.Context, deadline time.Time) {
		t.Helper()
		locktest.WaitUntilPast(deadline)
		if err := ctx.Err(); err == nil || !errors.Is(context.Cause(ctx), pglock.ErrLost) {
			t.Errorf("past the deadline the context says %v, cause %v", err, context.Cause(ctx))
		}
	}
	for name, run := range map[string]func(t *testing.T, client *pglock.Client, work func(ctx context.Context, l *pglock.Lease) error){
		"gocron": func(t *testing.T, client *pglock.Client, work func(ctx context.Context, l *pglock.Lease) error) {
			t.Helper()
			job, err := schedule.New(client, "report", schedule.WithTTL(ttl))
			if err != nil {
				t.Fatal(err)
			}
			task, err := gocronlock.Task(job, every{time.Hour}, work)
			if err != nil {
				t.Fatal(err)
			}
			if err := task(t.Context()); !errors.Is(err, pglock.ErrLost) {
				t.Errorf("the task: %v", err)
			}
		},
		"cron": func(t *testing.T, client *pglock.Client, work func(ctx context.Context, l *pglock.Lease) error) {
			t.Helper()
			job, err := schedule.New(client, "report", schedule.WithTTL(ttl))
			if err != nil {
				t.Fatal(err)
			}
			run, err := cronlock.Func(t.Context(), job, every{time.Hour}, work)
			if err != nil {
				t.Fatal(err)
			}
			run()
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const rounds = 4 // without a look at the clock, the timer has run in about half of the rounds
			ran := 0
			for range rounds {
				run(t, locktest.Client(t, pgtest.Database(t), pglock.WithRenewEvery(0)), func(ctx context.Context, l *pglock.Lease) error {
					ran++
					look(t, ctx, l.Deadline())
					return nil
				})
			}
			if ran != rounds {
				t.Errorf("the work ran %d times", ran)
			}
		})
	}
}
