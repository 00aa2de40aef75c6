package display_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pglock/pglock-go/fencing"
	"github.com/pglock/pglock-go/pglock/inspect"
	"github.com/pglock/pglock-go/pglock/internal/display"
)

var now = time.Date(2026, 11, 28, 3, 0, 0, 0, time.UTC)

// usual is a database in which nothing needs attention, although each list has something.
func usual() inspect.Snapshot {
	return inspect.Snapshot{
		At: now, Matching: 3,
		Server: inspect.Server{Connections: 79, MaxConnections: 100},
		Locks: []inspect.Lock{
			{Name: "job", Holder: "h", Token: 1, HeldFor: time.Hour, Remaining: time.Second},
			{Name: "queue", Holder: "h", Token: 2, HeldFor: time.Hour, Remaining: time.Second, Waiters: []inspect.Waiter{{Holder: "w", Waited: 59 * time.Second}}},
			{Name: "election", Holder: "h", Token: 3, Remaining: time.Second, Labels: map[string]string{"payload": ""}, Waiters: []inspect.Waiter{{Holder: "c", Waited: time.Hour}}},
		},
		Once:      []inspect.Attempt{{Key: "running", StartedAt: now.Add(-time.Hour), Running: true}},
		Guards:    []inspect.Guard{{Name: "job", PID: 7, Age: time.Hour}, {Name: "other", PID: 8, Age: time.Second, Ended: true}},
		Schedules: []inspect.Schedule{{Job: "s", Next: now.Add(-time.Second)}, {Job: "r", Next: now.Add(-time.Hour), Running: now.Add(-time.Hour), Failed: now, Attempts: 1}},
	}
}

// TestAttention: each thing that is not as usual is one concern, in its place and with its cure.
func TestAttention(t *testing.T) {
	t.Parallel()
	checks := []display.Check{{Name: "clock", Level: "warn", Found: "ahead"}, {Name: "server", Level: "ok"}, {Name: "x", Level: "skip"}}
	type overdue = map[fencing.Token]time.Duration
	type grown = map[string]int
	unusual := []struct {
		change     func(s *inspect.Snapshot, overdue overdue, grown grown)
		line, cure string
	}{
		{func(s *inspect.Snapshot, _ overdue, _ grown) {
			s.Once = append(s.Once, inspect.Attempt{Key: "charge 1", Token: 5, Holder: "api", StartedAt: now.Add(-time.Hour)})
		}, `fail key "charge 1", api: its effect began 1h0m ago, and the outcome is unknown`, "pglock once resolve 'charge 1' --happened, or --did-not-happen"},
		{func(s *inspect.Snapshot, _ overdue, _ grown) {
			s.Guards = append(s.Guards, inspect.Guard{Name: "g", PID: 4711, Application: "web", Age: time.Minute, Ended: true})
		}, "fail g, process 4711, web: no client gets the lock", "SELECT pg_terminate_backend(4711)"},
		{func(s *inspect.Snapshot, _ overdue, _ grown) {
			s.Guards = append(s.Guards, inspect.Guard{Name: "p", Prepared: "it's", Ended: true})
		}, "fail p, prepared transaction it's: no client gets the lock", "ROLLBACK PREPARED 'it''s'"},
		{func(_ *inspect.Snapshot, overdue overdue, _ grown) {
			overdue[1] = 24 * time.Second
		}, "fail job, h: not renewed for 24s, ends in 1s", "pglock show job"},
		{func(s *inspect.Snapshot, _ overdue, _ grown) {
			s.Schedules = append(s.Schedules, inspect.Schedule{Job: "nightly", Next: now.Add(-90 * time.Minute)})
		}, "fail nightly: its tick is late by 1h30m", "pglock show nightly"},
		{func(s *inspect.Snapshot, _ overdue, _ grown) {
			s.Schedules = append(s.Schedules, inspect.Schedule{Job: "bill it", Failed: now, Attempts: 3, Error: "no paper"})
		}, `fail "bill it": its tick of 2026-11-28 03:00:00 has failed: no paper`, "pglock schedule run 'bill it'"},
		{func(s *inspect.Snapshot, _ overdue, _ grown) {
			for i, name := range []string{"a", "b"} {
				s.Locks = append(s.Locks, inspect.Lock{Name: name, Holder: name, Remaining: 1, Token: fencing.Token(100 + i), Waiters: []inspect.Waiter{{Holder: string("ba"[i])}}})
			}
			s.Matching += 2
		}, "warn a, a: clients wait for one another, perhaps in a cycle", "pglock top --once --screen blocking"},
		{func(s *inspect.Snapshot, _ overdue, _ grown) {
			s.Locks[1].Waiters = append(s.Locks[1].Waiters, inspect.Waiter{Waited: 61 * time.Second})
		}, "warn queue, h: held for 1h0m, waiters: 2, up to 1m1s", `pglock ask queue --reason "…"; if it hangs: pglock release queue --force --reason "…"`},
		{func(s *inspect.Snapshot, _ overdue, grown grown) {
			grown["sem"] = 10
			s.Locks = append(s.Locks, inspect.Lock{Name: "sem", Waiters: make([]inspect.Waiter, 12), Grants: []inspect.Grant{{Holder: "x", Token: 9, ReleaseRequested: true}, {Holder: "y"}}})
			s.Matching++
		}, "warn sem, x: held for 0s, waiters: 12, up to 0s, 10 more than before", `its holder was asked, so: pglock release sem --token 9 --force`},
		{func(s *inspect.Snapshot, _ overdue, _ grown) {
			s.Server.Connections = 80
		},
			"warn 80 of 100 connections are in use", "max_connections"},
		{func(s *inspect.Snapshot, _ overdue, _ grown) { s.Matching += 100 },
			"warn only 3 of 103 locks were looked at", "pglock ls --pattern"},
	}
	read := func(s inspect.Snapshot, overdue overdue, grown grown, checks []display.Check) (lines []string) {
		for _, c := range display.Attention(s, overdue, grown, checks) {
			lines = append(lines, c.Level+" "+c.Line()+" | "+c.Cure)
		}
		return lines
	}
	if got := read(usual(), nil, nil, checks); got != nil {
		t.Errorf("nothing to do: %q", got)
	}
	all, late, longer := usual(), overdue{}, grown{"queue": 9}
	for _, u := range unusual {
		s, o, g := usual(), overdue{}, grown{"queue": 9}
		u.change(&s, o, g)
		if got := read(s, o, g, checks); len(got) != 1 || !strings.HasPrefix(got[0], u.line) || !strings.Contains(got[0], u.cure) {
			t.Errorf("%q, want one of %s … %s", got, u.line, u.cure)
		}
		u.change(&all, late, longer)
	}
	got := read(all, late, longer, append(checks, display.Check{Name: "fsync", Level: "fail", Found: "off", Remedy: "set it"}))
	if len(got) != len(unusual)+1 || got[0] != "fail fsync: off | set it" {
		t.Errorf("%d: %q", len(got), got)
	}
	for i, u := range unusual[:len(unusual)-1] {
		if i+1 < len(got) && !strings.HasPrefix(got[i+1], u.line) {
			t.Errorf("place %d: %s, want %s", i+1, got[i+1], u.line)
		}
	}
}

// TestHostileConcerns: no text acts in a terminal, and no command has a name that can't be typed.
func TestHostileConcerns(t *testing.T) {
	t.Parallel()
	const evil = "a\x1b[2J\u202e\n'; rm -rf /"
	s := inspect.Snapshot{At: now, Once: []inspect.Attempt{{Key: evil, Holder: evil, StartedAt: now}, {Key: "it's", StartedAt: now}, {Key: "--happened", StartedAt: now}}}
	all := display.Attention(s, nil, nil, []display.Check{{Name: evil, Level: "fail", Found: evil, Remedy: evil}})
	for _, c := range all {
		if strings.ContainsAny(c.Line(), "\x1b\u202e\n") {
			t.Errorf("%q", c.Line())
		}
	}
	if !strings.Contains(all[1].Cure, "resolve NAME --") || !strings.Contains(all[2].Cure, `resolve 'it'\''s' --`) || !strings.Contains(all[3].Cure, "resolve NAME --") {
		t.Errorf("%q, %q, %q", all[1].Cure, all[2].Cure, all[3].Cure)
	}
}

// TestGrown: a queue grows from its shortest, and one that is new has not grown.
func TestGrown(t *testing.T) {
	t.Parallel()
	var q display.Queues
	var got []int
	for _, n := range []int{20, 30, 5, 8, -1, 40, 41} {
		var locks []inspect.Lock
		if n >= 0 {
			locks = []inspect.Lock{{Name: "n", Waiters: make([]inspect.Waiter, n)}}
		}
		got = append(got, q.Grown(locks)["n"])
	}
	if want := []int{0, 10, 0, 3, 0, 0, 1}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

// TestBy: an operator's name leaves room for the reason.
func TestBy(t *testing.T) {
	t.Parallel()
	for _, tc := range [][3]string{
		{"deploy ", "ann@ops", "deploy (by ann@ops)"}, {"", "ann", "(by ann)"}, {"r", "a\x00\xff" + strings.Repeat("x", 200), "r (by a" + strings.Repeat("x", 98) + ")"},
	} {
		if got := display.By(tc[0], tc[1]); got != tc[2] {
			t.Errorf("%s, want %s", fmt.Sprintf("%q", got), tc[2])
		}
	}
}
