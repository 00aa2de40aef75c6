package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/pglock/pglock-go/internal/errs"
	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/schedule"
)

// onceFlags are the flags of pglock run that run the command once per tick or period.
type onceFlags struct {
	tick        string
	oncePer     time.Duration
	countFailed bool
	retry       int
	backoff     time.Duration

	ticks schedule.Schedule // of --tick
}

func (f *onceFlags) register(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&f.tick, "tick", "", "run the command once for each tick among all hosts, if the last `tick` was not run:\na duration, like 1h, or \"daily@HH:MM ZONE\", or \"cron MINUTE HOUR DAY MONTH WEEKDAY ZONE\"\n(default zone: that of this host)")
	flags.DurationVar(&f.oncePer, "once-per", 0, "run the command at most once in this time among all hosts, by the database's clock")
	flags.BoolVar(&f.countFailed, "count-failed", false, "with --tick or --once-per: a command that fails counts as run")
	flags.IntVar(&f.retry, "retry", 0, "with --tick or --once-per: repeat a command that fails up to this many times\namong all hosts, before the next tick; then it counts as run")
	flags.DurationVar(&f.backoff, "backoff", 10*time.Second, "with --retry: the pause before the first repetition, which doubles")
}

func (f *onceFlags) check(cmd *cobra.Command) error {
	flags := cmd.Flags()
	tick, per := flags.Changed("tick"), flags.Changed("once-per")
	switch {
	case tick && per:
		return usage(cmd, "--tick and --once-per are both given: must be one of them")
	case per && f.oncePer < time.Second:
		return usage(cmd, "--once-per %v is too short: must be 1s or more", f.oncePer)
	case flags.Changed("count-failed") && !tick && !per:
		return usage(cmd, "--count-failed has no effect: must be with --tick or --once-per")
	case flags.Changed("retry") && !tick && !per:
		return usage(cmd, "--retry has no effect: must be with --tick or --once-per")
	case flags.Changed("backoff") && !flags.Changed("retry"):
		return usage(cmd, "--backoff has no effect: must be with --retry")
	case tick:
		var err error
		due := time.Time{}
		if f.ticks, err = parseTicks(f.tick); err == nil {
			due, err = schedule.Due(f.ticks, time.Now())
		}
		switch {
		case err != nil:
			return usage(cmd, "--tick is invalid: %s", errs.Reason(err))
		case due.IsZero():
			return usage(cmd, "--tick is invalid: it comes too rarely: must be once in nine years or more often")
		}
	}
	return nil
}

// repeats reports whether --retry is given.
func (f *onceFlags) repeats() bool { return f.retry != 0 }

func (f *onceFlags) given() bool { return f.ticks != nil || f.oncePer > 0 }

func (f *runFlags) beginOnce(ctx context.Context, client *pglock.Client, name string, wait time.Duration) (*grant, error) {
	options := []schedule.Option{schedule.WithTTL(f.ttl), schedule.WithWait(wait), schedule.WithLabels(f.labelMap)}
	if f.repeats() {
		options = append(options, schedule.WithRetry(f.retry, f.backoff))
	}
	job, err := schedule.New(client, name, options...)
	if err != nil {
		return nil, err
	}
	g, run := &grant{}, (*schedule.Run)(nil)
	if f.oncePer > 0 {
		run, err = job.BeginPer(ctx, f.oncePer)
	} else {
		run, err = job.BeginDue(ctx, f.ticks)
	}
	if err != nil {
		return nil, err
	}
	if f.oncePer == 0 {
		g.tick = run.Tick().UTC().Format(time.RFC3339)
	}
	g.lease, g.end = run.Lease(), func(ctx context.Context, status int) error {
		switch {
		case status == 0:
			return run.End(ctx)
		case !f.countFailed && (g.interrupted || !f.repeats()):
			return run.Abandon(ctx)
		}
		again, err := run.Fail(ctx, fmt.Errorf("exit status %d on %s", status, run.Lease().Holder()))
		g.again.Store(again && !g.interrupted)
		return err
	}
	return g, nil
}
