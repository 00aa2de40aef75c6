package main

import (
	"strings"
	"testing"
	"time"

	"github.com/robfig/cron/v3"

	"github.com/pglock/pglock-go/internal/locktest"
	"github.com/pglock/pglock-go/pglock/schedule"
)

// TestEachDayHasATick: by each form with a time zone, each day of ten years has one tick, whatever clocks do, but
// the day that Samoa has skipped, whose tick is at its end. In the control the expression has the zone itself.
func TestEachDayHasATick(t *testing.T) {
	t.Parallel()
	for zone, at := range map[string]string{
		"America/New_York": "2:30", "America/Sao_Paulo": "0:30", "Africa/Cairo": "0:30", "Australia/Lord_Howe": "2:15", "Pacific/Apia": "3:30",
	} {
		loc, err := time.LoadLocation(zone)
		locktest.OK(t, err)
		year := 2016 // Egypt changes its clocks from 2023 on
		if zone == "America/Sao_Paulo" || zone == "Pacific/Apia" {
			year = 2009 // Brazil did until 2019, Samoa until 2021
		}
		begin := time.Date(year, 1, 1, 0, 0, 0, 0, loc)
		end := begin.AddDate(10, 0, 0)
		// wrong returns how many days have no tick, or more than one.
		wrong := func(s schedule.Schedule) (days int) {
			ticks := map[string]int{}
			for tick := s.Next(begin.Add(-1)); tick.Before(end); tick = s.Next(tick) {
				ticks[tick.In(loc).Format(time.DateOnly)]++
			}
			for day := begin; day.Before(end); day = day.AddDate(0, 0, 1) {
				if ticks[day.Format(time.DateOnly)] != 1 {
					days++
				}
			}
			return days
		}
		hour, minute, _ := strings.Cut(at, ":")
		expression := minute + " " + hour + " * * *"
		for _, form := range []string{"daily@" + at + " " + zone, "cron " + expression + " " + zone} {
			s, err := parseTicks(form)
			locktest.OK(t, err)
			want := 0
			if zone == "Pacific/Apia" {
				want = 1 // the tick of December 30, 2011, is at 0:00 of the 31st, which has its own at 3:30
			}
			if days := wrong(s); days != want {
				t.Errorf("%s: %d days have no tick, or more than one", form, days)
			}
		}
		spec, err := cron.ParseStandard("CRON_TZ=" + zone + " " + expression)
		locktest.OK(t, err)
		if wrong(spec) < 2 {
			t.Errorf("%s: control: the expression has one tick each day", zone)
		}
	}
}

// TestTickForms: what --tick accepts, and what is wrong with the rest.
func TestTickForms(t *testing.T) {
	t.Parallel()
	monday := time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)
	for text, want := range map[string]string{
		"1h": "23 13:00", "daily@03:00 Europe/Berlin": "24 02:00", "cron 0 3 * * 2-5 Europe/Berlin": "24 02:00", "cron @daily Asia/Tokyo": "23 15:00",
		"cron  */30  *  *  *  *  UTC": "23 12:30", "soon": "duration", "cron": "duration", "cron 0 3 * *": "duration", "cron 0 3 * * * Europe/Berlin UTC": "duration",
		"cron 61 3 * * *": "duration", "cron TZ=UTC 3 * * * *": "duration", "cron CRON_TZ=UTC 0 3 * * *": "duration", "cron @every 1h": "duration", "daily@03:00 in Berlin": "duration",
		"daily@03:00 Berlin": "unknown time zone", "cron 0 3 * * * Local": "unknown time zone", "cron 0 3 30 2 * UTC": "never has a tick", "daily@24:00 UTC": "time of day",
	} {
		s, err := parseTicks(text)
		if err == nil {
			_, err = schedule.Due(s, monday)
		}
		got := ""
		if err == nil {
			got = s.Next(monday).UTC().Format("02 15:04")
		} else {
			got = err.Error()
		}
		if !strings.Contains(got, want) {
			t.Errorf("%q: got %q, want %q", text, got, want)
		}
	}
}
