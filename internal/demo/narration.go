package main

import (
	"cmp"
	"fmt"
	"slices"
)

// opening says what is to come.
func (s *story) opening(d demo) {
	s.heading("pglock demo: ", fmt.Sprintf("%d processes, one account, three acts. First a PostgreSQL server "+
		"(by URL, from Docker, from this machine, or downloaded).", d.workers))
}

func (s *story) server(which string) { s.say(plain, all, "use %s", which) }

func (s *story) act(a act) { s.heading(fmt.Sprintf("Act %d  ", a.number), a.about) }

// lateWrite tells what came of a woken holder's write.
func (s *story) lateWrite(e event) {
	if e.Kind == wrote {
		s.say(bad, e.from.name, "STALE WRITE: writes %d with token %d; nothing keeps it out", e.Balance, e.Token)
	}
	for _, r := range e.Refusals {
		switch r.By {
		case byLease:
			s.say(good, e.from.name, "REFUSED by its own clock: %s", r.Error)
		case byFence:
			s.say(good, e.from.name, "REFUSED by the server, asked with the token alone: %s", r.Error)
		case byServer:
			s.say(good, e.from.name, "REFUSED by the server, which had ended the transaction: %s", r.Error)
		}
	}
}

// summary ends an act.
func (s *story) summary(r result) {
	t := good
	if r.lost() > 0 {
		t = bad
	}
	s.say(t, all, "end: %d deposits were made, the balance says %d: %d lost", r.deposits, r.balance, r.lost())
	if len(r.grants) > 0 {
		byToken := func(a, b grant) int { return cmp.Compare(a.token, b.token) }
		s.say(plain, all, "%d grants, tokens from %d to %d", len(r.grants),
			slices.MinFunc(r.grants, byToken).token, slices.MaxFunc(r.grants, byToken).token)
	}
}

// results is the table of all acts.
func (s *story) results(all []result) {
	s.heading("Result", "")
	fmt.Fprintf(s.out, "  %-20s %9s %9s %9s %8s   %s\n", "", "deposits", "balance", "lost", "grants", "late writes")
	for _, r := range all {
		fmt.Fprintf(s.out, "  %d  %-17s %9d %9d %9d %8d   %s\n",
			r.number, r.name, r.deposits, r.balance, r.lost(), len(r.grants), r.lateWrites())
	}
}

// lateWrites says what came of them.
func (r result) lateWrites() string {
	passed := 0
	for _, w := range r.late {
		if w.passed {
			passed++
		}
	}
	switch {
	case len(r.late) == 0:
		return "-"
	case passed == 0:
		return fmt.Sprintf("%d refused", len(r.late))
	case passed == len(r.late):
		return fmt.Sprintf("%d got through", passed)
	}
	return fmt.Sprintf("%d got through, %d refused", passed, len(r.late)-passed)
}

// verdict tells the findings, and returns errNotAsExpected if one is bad.
func (s *story) verdict(findings []finding) error {
	fmt.Fprintln(s.out)
	wrong := 0
	for _, f := range findings {
		t, word := good, "ok    "
		if f.fault != "" {
			t, word = bad, "FAILED"
			wrong++
		}
		fmt.Fprintln(s.out, "  "+s.paint(t, word+"  "+f.expected))
		if f.fault != "" {
			fmt.Fprintln(s.out, s.paint(t, "          but "+f.fault))
		}
	}
	if wrong > 0 {
		s.heading("Not as expected: ", fmt.Sprintf("%d of %d checks failed.", wrong, len(findings)))
		return errNotAsExpected
	}
	s.heading("As expected: ", "a lock alone does not keep a paused holder from writing; its fencing token, checked in the transaction that writes, does.")
	return nil
}
