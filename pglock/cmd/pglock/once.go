package main

import (
	"context"
	"errors"
	"strings"
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

	ticks schedule.Schedule // of --tick
}

func (f *onceFlags) register(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&f.tick, "tick", "", "run the command once for each tick among all hosts, if the last `tick` was not run:\na duration, like 1h, or daily@HH:MM by the time zone of this host")
	flags.DurationVar(&f.oncePer, "once-per", 0, "run the command at most once in this time among all hosts, by the database's clock")
	flags.BoolVar(&f.countFailed, "count-failed", false, "with --tick or --once-per: a command that fails counts as run")
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
	case tick:
		f.ticks = parseTicks(f.tick)
		switch tick, err := schedule.Due(f.ticks, time.Now()); {
		case errors.Is(err, schedule.ErrZone):
			return usage(cmd, "--tick daily@: %s", errs.Reason(err))
		case err != nil || tick.IsZero():
			return usage(cmd, "--tick is invalid: must be a duration, like 1h, or daily@HH:MM")
		}
	}
	return nil
}

func (f *onceFlags) given() bool { return f.ticks != nil || f.oncePer > 0 }

// parseTicks returns an invalid schedule for an invalid text.
func parseTicks(text string) schedule.Schedule {
	if at, ok := strings.CutPrefix(text, "daily@"); ok {
		return schedule.Daily(at, time.Local)
	}
	period, _ := time.ParseDuration(text) // 0 is invalid for Every
	return schedule.Every(period)
}

func (f *runFlags) beginOnce(ctx context.Context, client *pglock.Client, name string, wait time.Duration) (*grant, error) {
	job, err := schedule.New(client, name, schedule.WithTTL(f.ttl), schedule.WithWait(wait), schedule.WithLabels(f.labelMap))
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
		if status != 0 && !f.countFailed {
			return run.Abandon(ctx)
		}
		return run.End(ctx)
	}
	return g, nil
}
