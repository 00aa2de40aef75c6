package main

import (
	"errors"
	"strings"
	"time"

	"github.com/robfig/cron/v3"

	"github.com/pglock/pglock-go/pglock/schedule"
)

const (
	tickForms = "must be a duration, like 1h, or daily@HH:MM, or cron MINUTE HOUR DAY MONTH WEEKDAY, the last two with a time zone after a blank, like Europe/Berlin, or without"
	cronParts = 5 // of an expression; those that begin with @ have one
)

// parseTicks returns the schedule of --tick. One that is wrong in itself has the error of its first
// use.
func parseTicks(text string) (schedule.Schedule, error) {
	parts := strings.Fields(text)
	switch {
	case len(parts) > 1 && parts[0] == "cron":
		n := cronParts
		if strings.HasPrefix(parts[1], "@") {
			n = 1
		}
		if len(parts) < 1+n || strings.Contains(parts[1], "=") { // a zone stands at the end only
			return nil, errors.New(tickForms)
		}
		spec, err := cron.ParseStandard(strings.Join(parts[1:1+n], " "))
		if _, counts := spec.(cron.ConstantDelaySchedule); err != nil || counts {
			return nil, errors.New(tickForms)
		}
		return inZone(parts[1+n:], func(loc *time.Location) schedule.Schedule { return schedule.In(spec, loc) })
	case strings.HasPrefix(text, "daily@"):
		return inZone(parts[1:], func(loc *time.Location) schedule.Schedule {
			return schedule.Daily(strings.TrimPrefix(parts[0], "daily@"), loc)
		})
	}
	period, err := time.ParseDuration(text)
	if err != nil {
		return nil, errors.New(tickForms)
	}
	return schedule.Every(period), nil
}

// inZone returns the schedule in the zone that words name, or in that of this host.
func inZone(words []string, of func(*time.Location) schedule.Schedule) (schedule.Schedule, error) {
	switch len(words) {
	case 0:
		return of(time.Local), nil
	case 1:
		if loc, err := time.LoadLocation(words[0]); err == nil && loc != time.Local {
			return of(loc), nil
		}
		return nil, errors.New("unknown time zone: must be a name like Europe/Berlin")
	}
	return nil, errors.New(tickForms)
}
