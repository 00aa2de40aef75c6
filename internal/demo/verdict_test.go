package main

import (
	"errors"
	"slices"
	"strings"
	"testing"
)

// asExpected returns results that nothing is wrong with.
func asExpected() (none, lock, guard result) {
	none = result{deposits: 10, balance: 4}
	lock = result{deposits: 10, balance: 8, late: []event{{Worker: "B", Kind: wrote}}}
	guard = result{deposits: 10, balance: 10, late: []event{
		{Worker: "B", Kind: refused, Reasons: []string{byLease + "lost", byFence + "stale"}},
		{Worker: "C", Kind: refused, Reasons: []string{byServer + "ended"}},
	}}
	return none, lock, guard
}

func faults(findings []finding) (all []string) {
	for _, f := range findings {
		if !f.ok {
			all = append(all, f.expected)
		}
	}
	return all
}

// TestJudge spoils nothing, and then one thing at a time.
func TestJudge(t *testing.T) {
	t.Parallel()
	cases := []struct {
		name  string
		spoil func(none, lock, guard *result)
		want  []string // parts of the findings, one each
	}{
		{"as expected", func(_, _, _ *result) {}, nil},
		{"nothing lost without a lock", func(none, _, _ *result) { none.balance = 10 },
			[]string{"without a lock deposits are lost"}},
		{"nothing lost with the lock alone", func(_, lock, _ *result) { lock.balance = 10 },
			[]string{"with the lock alone deposits are lost"}},
		{"nobody wrote late", func(_, lock, _ *result) { lock.late = nil },
			[]string{"gets through"}},
		{"refused without a guard", func(_, lock, _ *result) { lock.late[0].Kind = refused },
			[]string{"gets through"}},
		{"lost with the guard", func(_, _, guard *result) { guard.balance = 9 },
			[]string{"with the guard no deposit is lost"}},
		{"more than was deposited", func(_, _, guard *result) { guard.balance = 11 },
			[]string{"with the guard no deposit is lost"}},
		{"no deposits with the guard", func(_, _, guard *result) { *guard = result{late: guard.late} },
			[]string{"with the guard no deposit is lost"}},
		{"got through the guard", func(_, _, guard *result) {
			guard.late[1].Kind = wrote
		}, []string{"are refused"}},
		{"never compared with the newest token", func(_, _, guard *result) { guard.late[0].Reasons = guard.late[0].Reasons[:1] },
			[]string{"are refused"}},
		{"nobody late with the guard", func(_, _, guard *result) { guard.late = nil },
			[]string{"are refused"}},
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
	err := (&story{out: &out}).verdict([]finding{{"this holds", true}, {"that holds", false}})
	if !errors.Is(err, errNotAsExpected) {
		t.Errorf("got %v", err)
	}
	for _, part := range []string{"ok      this holds\n", "FAILED  that holds\n", "1 of 2 checks failed"} {
		if !strings.Contains(out.String(), part) {
			t.Errorf("%q is missing in\n%s", part, out.String())
		}
	}
}
