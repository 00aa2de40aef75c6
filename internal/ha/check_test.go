//go:build linux

package main

import (
	"bytes"
	"strings"
	"testing"
	"time"
)

// TestCheck: each rule finds its violation, and none in a correct history.
func TestCheck(t *testing.T) {
	t.Parallel()
	grant := func(worker int, token, began, at int64) event {
		return event{Kind: "grant", Worker: worker, Token: token, Began: began, At: at}
	}
	end := func(worker int, token, at int64) event {
		return event{Kind: "end", Worker: worker, Token: token, At: at}
	}
	write := func(worker int, token, seq, at int64) event {
		return event{Kind: "write", Worker: worker, Token: token, Seq: seq, At: at}
	}
	good := []event{grant(1, 5, 10, 20), write(1, 5, 1, 25), end(1, 5, 30), grant(2, 6, 15, 40), write(2, 6, 1, 45), end(2, 6, 50)}
	ledger := []line{{1, 1, 5}, {2, 1, 6}}
	for name, test := range map[string]struct {
		events []event
		ledger []line
		sync   string // begins like this; "" is no violation
		async  string
	}{
		"correct":              {good, ledger, "", ""},
		"nothing happened":     {nil, nil, "no grant", "no grant"},
		"a smaller token":      {append(good[:6:6], grant(3, 4, 60, 70), end(3, 4, 71)), ledger, "order 1 times", ""},
		"the same token":       {append(good[:6:6], grant(3, 6, 60, 70), end(3, 6, 71)), ledger, "order 1 times", ""},
		"asked for before":     {append(good[:6:6], grant(3, 4, 5, 70), end(3, 4, 71)), ledger, "", ""},
		"two holders":          {append(good[:6:6], grant(3, 7, 44, 46), end(3, 7, 71)), ledger, "exclusion 1 times", ""},
		"a holder without end": {append(good[:5:5], grant(3, 7, 44, 60), end(3, 7, 71)), ledger, "exclusion 1 times", ""},
		"a lost write":         {good, ledger[:1], "kept 1 times", ""},
		"another's write":      {good, []line{{1, 1, 5}, {2, 1, 5}}, "kept 1 times", ""},
		"a stale write":        {good, []line{{2, 1, 6}, {1, 1, 5}}, "stale 1 times", "stale 1 times"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := check(test.events, test.ledger)
			for sync, want := range map[bool]string{true: test.sync, false: test.async} {
				if got := r.violations(sync); !strings.HasPrefix(got, want) || (want == "") != (got == "") {
					t.Errorf("sync %v: %q, want %q", sync, got, want)
				}
			}
			_ = r.report(nil)
		})
	}
	if r := check(good, ledger); r.margin != 10 || len(r.grants) != 2 || len(r.writes) != 2 {
		t.Errorf("margin %v, %d grants, %d writes", r.margin, len(r.grants), len(r.writes))
	}
}

// TestGap: the time without a grant, where grants of an old timeline don't count.
func TestGap(t *testing.T) {
	t.Parallel()
	began := time.Unix(1000, 0)
	at := func(timeline int64, after time.Duration) event {
		return event{Kind: "grant", Token: timeline << 44, At: began.Add(after).UnixNano(), Began: began.Add(after - 1).UnixNano()}
	}
	r := check([]event{
		at(0, -time.Second), at(0, time.Second), at(1, 21*time.Second), at(0, 30*time.Second), at(1, 22*time.Second), at(1, 61*time.Second),
	}, nil)
	if got := r.gap(mark{began: began, ok: began.Add(40 * time.Second)}); got != 39*time.Second {
		t.Errorf("a gap of %v", got)
	}
	if got := r.gap(mark{began: began, ok: began.Add(20 * time.Second)}); got != 20*time.Second {
		t.Errorf("a gap of %v", got)
	}
}

func TestArguments(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"-replication", "half"}, {"extra"}, {"-unknown"}} {
		var out, problems bytes.Buffer
		if status := run(t.Context(), args, &out, &problems); status != exitUsage || problems.Len() == 0 {
			t.Errorf("%v: status %d, %q", args, status, problems.String())
		}
	}
}
