package adapters_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/robfig/cron/v3"

	"github.com/pglock/pglock-go/internal/locktest"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/schedule"
)

// TestCronsOwnDST: cron decides which ticks there are on days of 23 and 25 hours. Each of them runs
// once among two replicas.
func TestCronsOwnDST(t *testing.T) {
	t.Parallel()
	spec, err := cron.ParseStandard("CRON_TZ=Europe/Berlin 30 2 * * *")
	if err != nil {
		t.Fatal(err)
	}
	url := pgtest.Database(t)
	for _, around := range []string{"2026-03-27T12:00:00Z", "2026-10-23T12:00:00Z"} {
		begin, err := time.Parse(time.RFC3339, around)
		if err != nil {
			t.Fatal(err)
		}
		var want, got []time.Time
		for tick := spec.Next(begin); tick.Before(begin.AddDate(0, 0, 4)); tick = spec.Next(tick) {
			want = append(want, tick)
		}
		now := begin
		var replicas []*schedule.Job
		for range 2 {
			job, err := schedule.New(locktest.Client(t, url), "report", schedule.WithClock(func() time.Time { return now }))
			if err != nil {
				t.Fatal(err)
			}
			replicas = append(replicas, job)
		}
		none := func(context.Context, *pglock.Lease) error { return nil }
		if err := replicas[0].RunDue(t.Context(), spec, none); err != nil { // the tick before
			t.Fatal(err)
		}
		for ; now.Before(begin.AddDate(0, 0, 4)); now = now.Add(time.Hour) {
			for _, job := range replicas {
				tick, err := schedule.Due(spec, now)
				if err != nil {
					t.Fatal(err)
				}
				err = job.RunDue(t.Context(), spec, func(context.Context, *pglock.Lease) error { got = append(got, tick); return nil })
				if err != nil && !schedule.Done(err) {
					t.Error(err)
				}
			}
		}
		if !slices.EqualFunc(got, want, time.Time.Equal) {
			t.Errorf("from %s: runs at %v, want %v", around, got, want)
		}
		t.Logf("ticks of cron: %v", want)
	}
}

// TestCronEveryIsRefused: cron.Every counts from the start of each process.
func TestCronEveryIsRefused(t *testing.T) {
	t.Parallel()
	job, err := schedule.New(locktest.Client(t, pgtest.Database(t)), "n")
	if err != nil {
		t.Fatal(err)
	}
	none := func(context.Context, *pglock.Lease) error { return nil }
	if err := job.Run(t.Context(), cron.Every(time.Hour), none); !errors.Is(err, pglock.ErrInvalidOption) {
		t.Errorf("Run: %v", err)
	}
	every, err := cron.ParseStandard("@every 1h")
	if err != nil {
		t.Fatal(err)
	}
	if err := job.RunDue(t.Context(), every, none); !errors.Is(err, pglock.ErrInvalidOption) {
		t.Errorf("RunDue: %v", err)
	}
	daily, err := cron.ParseStandard("@daily")
	if err != nil {
		t.Fatal(err)
	}
	if err := job.RunDue(t.Context(), daily, none); err != nil {
		t.Errorf("a daily schedule: %v", err)
	}
}
