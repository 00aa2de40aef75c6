package main

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"
)

var noon = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

// after is a time on the server's clock.
func after(s int) time.Time { return noon.Add(time.Duration(s) * time.Second) }

// asExpected returns results that nothing is wrong with.
func asExpected() (none, lock, guard result) {
	none = result{act: act{number: 1}, tally: tally{deposits: 10, balance: 4}}
	lock = result{
		act: act{number: 2}, tally: tally{deposits: 10, balance: 8},
		grants:      []grant{{"B", 2, after(4)}, {"A", 1, after(1)}, {"C", 3, after(7)}},
		successions: []succession{{1, after(3), grant{"B", 2, after(4)}}, {2, after(6), grant{"C", 3, after(7)}}},
		late:        []lateWrite{{holder: "B", token: 2, passed: true}},
	}
	guard = result{
		act: act{number: 3}, tally: tally{deposits: 10, balance: 10},
		grants:      []grant{{"A", 4, after(11)}, {"B", 5, after(14)}, {"C", 6, after(17)}},
		successions: []succession{{4, after(13), grant{"B", 5, after(14)}}, {5, after(17), grant{"C", 6, after(17)}}},
		late: []lateWrite{
			{holder: "B", token: 5, refusals: []refusal{{byLease, "lost"}, {byFence, "stale"}}},
			{holder: "C", token: 6, refusals: []refusal{{byServer, "ended"}}},
		},
	}
	return none, lock, guard
}

func faults(findings []finding) (all []string) {
	for _, f := range findings {
		if f.fault != "" {
			all = append(all, f.expected+": "+f.fault)
		}
	}
	return all
}

func TestJudgeIsContent(t *testing.T) {
	t.Parallel()
	if wrong := faults(judge(asExpected())); len(wrong) > 0 {
		t.Error(wrong)
	}
}

// TestJudgeFindsFault spoils one thing at a time.
func TestJudgeFindsFault(t *testing.T) {
	t.Parallel()
	cases := []struct {
		name  string
		spoil func(none, lock, guard *result)
		want  []string // parts of the findings, one each
	}{
		{"nothing lost without a lock", func(none, _, _ *result) { none.balance = 10 },
			[]string{"without a lock deposits are lost: of 10 deposits 0 were lost"}},
		{"nothing lost with the lock alone", func(_, lock, _ *result) { lock.balance = 10 },
			[]string{"with the lock alone deposits are lost: of 10"}},
		{"nobody wrote late", func(_, lock, _ *result) { lock.late = nil },
			[]string{"gets through: of 0 late writes 0 got through"}},
		{"refused without a guard", func(_, lock, _ *result) { lock.late[0].passed = false },
			[]string{"gets through: of 1 late writes 0 got through"}},
		{"lost with the guard", func(_, _, guard *result) { guard.balance = 9 },
			[]string{"with the guard no deposit is lost: of 10 deposits 1 were lost"}},
		{"more than was deposited", func(_, _, guard *result) { guard.balance = 11 },
			[]string{"with the guard no deposit is lost"}},
		{"no deposits with the guard", func(_, _, guard *result) { guard.tally = tally{} },
			[]string{"with the guard no deposit is lost"}},
		{"got through the guard", func(_, _, guard *result) {
			guard.late[1] = lateWrite{holder: "C", token: 6, passed: true}
		}, []string{"are refused: 1 of 2 got through"}},
		{"never compared with the newest token", func(_, _, guard *result) { guard.late[0].refusals = guard.late[0].refusals[:1] },
			[]string{`are refused: 0 of 2 got through, and one was refused with "fencing: stale grant": false`}},
		{"nobody late with the guard", func(_, _, guard *result) { guard.late = nil },
			[]string{"are refused: 0 of 0"}},
		{"successor came early", func(_, lock, _ *result) { lock.successions[0].expiry = after(5) },
			[]string{"act 2: nobody got in before the lease of the killed or paused holder had ended: token 2 was granted 1s before"}},
		{"expiry never seen", func(_, _, guard *result) { guard.successions[1].expiry = time.Time{} },
			[]string{"act 3: nobody got in before the lease of the killed or paused holder had ended: when token 5's"}},
		{"nobody hit", func(_, _, guard *result) { guard.successions = nil },
			[]string{"act 3: nobody got in before the lease of the killed or paused holder had ended: nobody was"}},
		{"a token went down", func(_, _, guard *result) { guard.grants[1].at = after(10) },
			[]string{"act 3: tokens grow from grant to grant: token 4 was granted after token 5"}},
		{"a token came twice", func(_, lock, _ *result) { lock.grants[1].token = 2 },
			[]string{"act 2: tokens grow from grant to grant: token 2 was granted after token 2"}},
		{"one grant", func(_, lock, _ *result) { lock.grants = lock.grants[:1] },
			[]string{"act 2: tokens grow from grant to grant: there were 1 grants"}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			none, lock, guard := asExpected()
			c.spoil(&none, &lock, &guard)
			wrong := faults(judge(none, lock, guard))
			if !slices.EqualFunc(wrong, c.want, strings.Contains) {
				t.Errorf("got %q, want %q", wrong, c.want)
			}
		})
	}
}

func TestVerdict(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	err := (&story{out: &out}).verdict([]finding{{"this holds", ""}, {"that holds", "it broke"}})
	if !errors.Is(err, errNotAsExpected) {
		t.Errorf("got %v", err)
	}
	for _, part := range []string{"ok      this holds\n", "FAILED  that holds\n          but it broke\n", "1 of 2 checks failed"} {
		if !strings.Contains(out.String(), part) {
			t.Errorf("%q is missing in\n%s", part, out.String())
		}
	}
}
