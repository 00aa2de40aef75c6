//go:build unix

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglock/pglock-go/internal/locktest"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/internal/testserver"
	"github.com/pglock/pglock-go/migrations"
)

// longTick is a tick that does not change while a test runs.
const longTick = "30000h"

// age makes the last runs older, as if time had passed.
func (c *cli) age(d time.Duration) {
	c.t.Helper()
	locktest.Exec(c.t, c.pool, "UPDATE "+pgx.Identifier{c.schema, "fencing_high_water"}.Sanitize()+" SET token = token - $1", d.Microseconds())
}

// TestP58_OncePerTickAndPeriod: hosts that start one after the other run a quick command once, with
// --tick and with --once-per. In the control, without them, each host runs it.
func TestP58_OncePerTickAndPeriod(t *testing.T) {
	t.Parallel()
	const hosts = 3
	for name, test := range map[string]struct {
		flags []string
		runs  int
	}{
		"tick":          {[]string{"--tick", longTick}, 1},
		"tick, daily":   {[]string{"--tick", "daily@00:00:00"}, 1},
		"tick, cron":    {[]string{"--tick", "cron 0 0 1 * * Asia/Tokyo"}, 1},
		"once per":      {[]string{"--once-per", "24h"}, 1},
		"without waits": {[]string{"--tick", longTick, "--wait", "0"}, 1},
		"control":       {nil, hosts},
		"control, try":  {[]string{"--wait", "0"}, hosts},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCLI(t)
			runs := 0
			for range hosts {
				args := append(append([]string{"run"}, test.flags...), "report", "--", "echo", "ran")
				r := c.expect(0, args...)
				switch {
				case r.stdout == "ran\n":
					runs++
				case !strings.HasPrefix(r.stderr, "pglock: nothing to do: "):
					t.Errorf("got %+v", r)
				}
			}
			if runs != test.runs {
				t.Errorf("%d runs on %d hosts, want %d", runs, hosts, test.runs)
			}
		})
	}
}

// TestOnceAtTheSameMoment: hosts that start at once run the command once. The others wait for it.
func TestOnceAtTheSameMoment(t *testing.T) {
	t.Parallel()
	for _, flag := range []string{"--tick=" + longTick, "--once-per=1h"} {
		c := newCLI(t)
		var calls []*call
		for range 5 {
			calls = append(calls, c.start("run", flag, "report", "--", "echo", "ran"))
		}
		stdout := ""
		for _, p := range calls {
			r := p.wait()
			if r.status != 0 {
				t.Errorf("%s: got %+v", flag, r)
			}
			stdout += r.stdout
		}
		if stdout != "ran\n" {
			t.Errorf("%s: the hosts print %q", flag, stdout)
		}
	}
}

// TestPeriodIsOver: the next period begins when the time is over, or ten seconds early.
func TestPeriodIsOver(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	run := func(what, want string) {
		t.Helper()
		if r := c.expect(0, "run", "--quiet", "--once-per", "24h", "report", "--", "echo", "ran"); r.stdout != want || r.stderr != "" {
			t.Errorf("%s: got %+v", what, r)
		}
	}
	run("at first", "ran\n")
	c.age(23 * time.Hour)
	run("after 23 hours", "")
	c.age(time.Hour - 9*time.Second)
	run("nine seconds early", "ran\n")
	run("and again", "")
	if r := c.expect(0, "run", "--once-per", "24h", "report", "--", "echo", "ran"); !strings.Contains(r.stderr, "the next one may begin 24h0m0s after it") {
		t.Errorf("got %+v", r)
	}
}

// TestAFailedRun does not count: the next start runs the command, unless --count-failed is given. A
// command that does not exist fails too, and so does one that a signal or the loss of the lock ends.
func TestAFailedRun(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	c.expect(3, "run", "--tick", longTick, "n", "--", "sh", "-c", "exit 3")
	c.expect(statusNotFound, "run", "--tick", longTick, "n", "--", "no-such-command")
	p := c.start("run", "--tick", longTick, "n", "--", "sh", "-c", "echo ready; exec sleep 1000")
	p.waitForStdout("ready")
	if r := p.end(); r.status != 128+int(syscall.SIGTERM) {
		t.Errorf("got %+v", r)
	}
	p = c.start("run", "--ttl", "8s", "--tick", longTick, "n", "--", "sh", "-c", "echo ready; exec sleep 1000")
	p.waitForStdout("ready")
	c.steal("n")
	if r := p.wait(); r.status != statusLost {
		t.Errorf("got %+v", r)
	}
	locktest.Exec(t, c.pool, "UPDATE "+c.table()+" SET expires_at = clock_timestamp()")
	if r := c.expect(3, "run", "--count-failed", "--tick", longTick, "n", "--", "sh", "-c", "echo ran; exit 3"); r.stdout != "ran\n" {
		t.Errorf("after failures: got %+v", r)
	}
	if r := c.expect(0, "run", "--tick", longTick, "n", "--", "echo", "ran"); r.stdout != "" || !strings.Contains(r.stderr, "was already run") {
		t.Errorf("after one that counts: got %+v", r)
	}
}

// TestWaitingHostTakesOver: the host that runs the command is killed. The host that waits runs it.
func TestWaitingHostTakesOver(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	first := c.start("run", "--ttl", "8s", "--tick", longTick, "n", "--", "sh", "-c", "echo ready; exec sleep 1000")
	first.waitForStdout("ready")
	if r := c.expect(statusNotAcquired, "run", "--wait", "0", "--tick", longTick, "n", "--", "echo", "ran"); r.stdout != "" {
		t.Errorf("without waiting: got %+v", r)
	}
	if r := c.expect(7, "run", "--wait", "100ms", "--busy-status", "7", "--once-per", "1h", "n", "--", "echo", "ran"); r.stdout != "" {
		t.Errorf("waiting for a short time: got %+v", r)
	}
	second := c.start("run", "--tick", longTick, "n", "--", "echo", "ran")
	second.waitForStderr("waiting: ")
	locktest.OK(t, first.cmd.Process.Kill())
	if r := second.wait(); r.status != 0 || r.stdout != "ran\n" || !strings.Contains(r.stderr, "acquired lock") {
		t.Errorf("got %+v", r)
	}
}

// TestTickVariable: the command gets the scheduled time, and the lease the labels.
func TestTickVariable(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	c.set("TZ", "UTC")
	before := time.Now().UTC().AddDate(0, 0, -1)
	p := c.start("run", "--label", "team=a", "--tick", "daily@00:00", "n", "--", "sh", "-c", `echo "$PGLOCK_TICK|$PGLOCK_NAME"`)
	r := p.wait()
	labels := locktest.Scan[string](t, c.pool, "SELECT labels::text FROM "+c.table()+" WHERE name = 'n'") // of the last grant
	tick, err := time.Parse(time.RFC3339, strings.TrimSuffix(r.stdout, "|n\n"))
	if err != nil || tick.Before(before) || tick.Hour() != 0 || tick.Minute() != 0 {
		t.Errorf("got %+v, %v", r, err)
	}
	if !strings.Contains(labels, `"team": "a"`) || !strings.Contains(labels, tick.Format(time.DateOnly)) || !strings.Contains(labels, `"timezone": "UTC"`) {
		t.Errorf("labels %s", labels)
	}
}

// TestARunThatCanNotBeRecorded: the server hangs when the command has ended. pglock ends within its
// bound, with a status and a message that say so.
func TestARunThatCanNotBeRecorded(t *testing.T) {
	t.Parallel()
	server := pgtest.Server(t, testserver.Options{})
	pool := pgtest.PoolOn(t, server.URL())
	locktest.OK(t, migrations.Up(t.Context(), pool))
	c := bareCLI(t)
	c.set("PGLOCK_DATABASE_URL", server.URL())
	p := c.start("run", "--tick", longTick, "n", "--", "sh", "-c", "echo ready; while [ ! -e go ]; do sleep 0.05; done")
	p.waitForStdout("ready")
	locktest.OK(t, server.Pause())
	c.touch("go")
	begin := time.Now()
	r := p.wait()
	if r.status != statusUnavailable || !strings.Contains(r.stderr, "can't record the run") {
		t.Errorf("got %+v", r)
	}
	if took := time.Since(begin); took > 15*time.Second {
		t.Errorf("it took %v", took)
	}
	locktest.OK(t, server.Resume())
}

// TestOneZone: two hosts whose time zones differ do not run a day's tick twice: the second one is told. In the
// controls the zone has the same offset, and another time of day is another schedule.
func TestOneZone(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	at := func(ago time.Duration) string { return "daily@" + time.Now().UTC().Add(-ago).Format(time.TimeOnly) }
	first, changed := at(2*time.Hour), at(time.Hour)
	for _, start := range []struct {
		zone, tick     string
		status         int
		stdout, stderr string
	}{
		{"Etc/GMT-1", first, 0, "ran\n", ""},
		{"UTC", first, statusUsage, "", "is of another time zone"},
		{"", first, statusUsage, "", "is of another time zone"},
		{"Africa/Lagos", first, 0, "", "nothing to do"},
		{"UTC", first + " Africa/Lagos", 0, "", "nothing to do"},
		{"Africa/Lagos", first + " UTC", statusUsage, "", "(Etc/GMT-1), is of another time zone"},
		{"UTC", changed, 0, "ran\n", ""},
		{"Africa/Lagos", first, 0, "", "nothing to do"},
	} {
		c.set("TZ", start.zone)
		if r := c.expect(start.status, "run", "--tick", start.tick, "n", "--", "echo", "ran"); r.stdout != start.stdout || !strings.Contains(r.stderr, start.stderr) {
			t.Errorf("%+v: got %+v", start, r)
		}
	}
}

// TestUnknownZone: a TZ that can't be loaded is no UTC. It matters to --tick daily@ only.
func TestUnknownZone(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	file, none := filepath.Join(t.TempDir(), "zone"), filepath.Join(t.TempDir(), "none")
	// The least form of a file of tzfile(5): one zone, an hour east of UTC, and the four bytes of its name.
	locktest.OK(t, os.WriteFile(file, []byte("TZif"+strings.Repeat("\x00", 35)+"\x01\x00\x00\x00\x04\x00\x00\x0e\x10\x00\x00CET\x00"), 0o600))
	locktest.OK(t, os.WriteFile(none, []byte("no zone"), 0o600))
	for zone, status := range map[string]int{
		"Europe/Berlinn": statusUsage, "CET-1CEST": statusUsage, "Nowhere/City": statusUsage, ":No/City": statusUsage, "/no/file": statusUsage,
		"Europe/Berlin": 0, ":Europe/Berlin": 0, "UTC": 0, "": 0, "EST5EDT": 0, ":UTC": 0,
		file: 0, none: statusUsage,
	} {
		c.set("TZ", zone)
		r := c.expect(status, "run", "--tick", "daily@10:30", "n of "+zone, "--", "echo", "ran")
		if told := strings.Contains(r.stderr, "can't be loaded"); (r.stdout == "ran\n") != (status == 0) || told != (status != 0) || strings.Count(r.stderr, "\n") > 1 {
			t.Errorf("%s: got %+v", zone, r)
		}
		c.expect(0, "run", "--tick", longTick, "m of "+zone, "--", "true")
	}
}

// TestZoneFilesAreEmbedded: images from scratch have none.
func TestZoneFilesAreEmbedded(t *testing.T) {
	t.Parallel()
	out, err := exec.Command("go", "list", "-deps", ".").Output()
	if err != nil || !slices.Contains(strings.Fields(string(out)), "time/tzdata") {
		t.Errorf("the command does not import time/tzdata: %v", err)
	}
}
