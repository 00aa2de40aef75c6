//go:build linux

package main

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
)

// line is a row of the ledger.
type line struct {
	Worker     int
	Seq, Token int64
}

// grant is the time of a lease.
type grant struct {
	event
	until int64 // when its holder stopped trusting it; the end of time if that is not known
}

// result is what the workers did, with the violations of each rule.
type result struct {
	grants  []grant // by the time when they were reported
	writes  []event
	refused int

	order, exclusion, stale, lost []string
	margin                        time.Duration // the smallest time between the end of trust and the next grant
}

// check checks the history of all workers together with the ledger of the last primary.
func check(events []event, ledger []line) result {
	r := result{margin: math.MaxInt64}
	r.gather(events)
	r.checkOrder()
	r.checkExclusion()
	r.checkLedger(ledger)
	return r
}

func (r *result) gather(events []event) {
	type key struct {
		worker int
		token  int64
	}
	ends := map[key]int64{}
	for _, e := range events {
		k := key{e.Worker, e.Token}
		if first, found := ends[k]; e.Kind == "end" && (!found || e.At < first) {
			ends[k] = e.At
		}
	}
	for _, e := range events {
		switch e.Kind {
		case "grant":
			until, found := ends[key{e.Worker, e.Token}]
			if !found {
				until = math.MaxInt64
			}
			r.grants = append(r.grants, grant{e, until})
		case "write":
			r.writes = append(r.writes, e)
		case "refused":
			r.refused++
		}
	}
	slices.SortFunc(r.grants, func(a, b grant) int { return cmp.Compare(a.At, b.At) })
}

// checkOrder looks for grants that were asked for after one with a larger token was reported.
func (r *result) checkOrder() {
	asked := slices.Clone(r.grants)
	slices.SortFunc(asked, func(a, b grant) int { return cmp.Compare(a.Began, b.Began) })
	var highest grant
	reported := 0
	for _, g := range asked {
		for reported < len(r.grants) && r.grants[reported].At < g.Began {
			if r.grants[reported].Token > highest.Token {
				highest = r.grants[reported]
			}
			reported++
		}
		if g.Token <= highest.Token {
			r.order = append(r.order, fmt.Sprintf("%v; before it %v", g.event, highest.event))
		}
	}
}

// checkExclusion looks for grants that were reported while another holder trusted its lease.
func (r *result) checkExclusion() {
	for i, g := range r.grants {
		for _, before := range r.grants[:i] {
			if before.until > g.At {
				r.exclusion = append(r.exclusion, fmt.Sprintf("%v; until %v: %v", g.event, clock(before.until), before.event))
			} else {
				r.margin = min(r.margin, time.Duration(g.At-before.until))
			}
		}
	}
}

// checkLedger looks for writes out of order and for writes that were lost.
func (r *result) checkLedger(ledger []line) {
	found := make(map[line]bool, len(ledger))
	highest := int64(0)
	for _, l := range ledger {
		if l.Token < highest {
			r.stale = append(r.stale, fmt.Sprintf("a write of worker %d with token %d after one with %d", l.Worker, l.Token, highest))
		}
		highest = max(highest, l.Token)
		found[l] = true
	}
	for _, w := range r.writes {
		if !found[line{w.Worker, w.Seq, w.Token}] {
			r.lost = append(r.lost, w.String())
		}
	}
}

// violations names the promises that are broken, or returns "".
func (r *result) violations(sync bool) string {
	rules := []struct {
		name   string
		broken []string
		always bool
	}{{"order", r.order, false}, {"exclusion", r.exclusion, false}, {"kept", r.lost, false}, {"stale", r.stale, true}}
	var text []string
	for _, rule := range rules {
		if len(rule.broken) > 0 && (rule.always || sync) {
			text = append(text, fmt.Sprintf("%s %d times, first: %s", rule.name, len(rule.broken), rule.broken[0]))
		}
	}
	if len(r.grants) == 0 || len(r.writes) == 0 {
		text = append(text, "no grant or no write in all that time")
	}
	return strings.Join(text, "; ")
}

// report describes the faults and the result.
func (r *result) report(marks []mark) string {
	var b strings.Builder
	for _, m := range marks {
		fmt.Fprintf(&b, "  %-14s longest time without a grant %8s   %s\n", m.fault.name, r.gap(m).Round(time.Millisecond), m.fault.what)
	}
	fmt.Fprintf(&b, "  %d grants, %d guarded writes reported, %d refused as stale\n", len(r.grants), len(r.writes), r.refused)
	fmt.Fprintf(&b, "  violations: order %d, exclusion %d, stale %d, kept %d; the smallest time between two holders %v\n",
		len(r.order), len(r.exclusion), len(r.stale), len(r.lost), r.margin.Round(time.Microsecond))
	return b.String()
}

// gap returns the longest time without a grant of the newest timeline from shortly before the fault
// until its end. A grant's timeline is in the upper bits of its token.
func (r *result) gap(m mark) (longest time.Duration) {
	last := m.began.Add(-steadyTime / 2).UnixNano()
	newest := int64(0)
	for _, g := range r.grants {
		newest = max(newest, g.Token>>44)
		if g.At < last || g.Token>>44 < newest {
			continue
		}
		longest = max(longest, time.Duration(g.At-last))
		last = g.At
		if g.At > m.ok.UnixNano() {
			break
		}
	}
	return longest
}

func clock(ns int64) string {
	if ns == math.MaxInt64 {
		return "the end"
	}
	return time.Unix(0, ns).Format("15:04:05.000000")
}
