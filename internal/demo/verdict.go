package main

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/pglock/pglock-go/fencing"
)

// errNotAsExpected means that the demo ran, and showed something else than it should.
var errNotAsExpected = errors.New("demo: not as expected")

// result is what an act came to.
type result struct {
	act
	tally
	grants      []grant // by arrival of their reports
	successions []succession
	late        []lateWrite
}

// tally is what the tables say about an account.
type tally struct {
	deposits int64 // entries
	balance  int64
}

// lost returns how many deposits the balance lacks.
func (t tally) lost() int64 { return t.deposits - t.balance }

// grant is one grant of the lock.
type grant struct {
	holder string
	token  int64
	at     time.Time // by the server's clock
}

// succession is how the lock passed from a holder that could not renew any more to the next one.
type succession struct {
	token  int64     // of the holder
	expiry time.Time // of its lease, as the server had stored it last
	next   grant
}

// lateWrite is what a holder tried after it was woken.
type lateWrite struct {
	holder   string
	token    int64
	passed   bool
	refusals []refusal // why not
}

// finding is one thing that should have come about.
type finding struct {
	expected string
	fault    string // what came about instead, or empty
}

// judge compares the acts with what each of them is to show.
func judge(none, lock, guard result) []finding {
	check := func(expected string, ok bool, format string, args ...any) finding {
		if ok {
			return finding{expected: expected}
		}
		return finding{expected, fmt.Sprintf(format, args...)}
	}
	loss := func(r result) string { return fmt.Sprintf("of %d deposits %d were lost", r.deposits, r.lost()) }
	fenced := slices.ContainsFunc(guard.late, func(w lateWrite) bool {
		return slices.ContainsFunc(w.refusals, func(why refusal) bool { return why.By == byFence })
	})
	findings := []finding{
		check("without a lock deposits are lost", none.lost() > 0, "%s", loss(none)),
		check("with the lock alone the woken holder's late write gets through", lock.passed() > 0 && lock.passed() == len(lock.late),
			"of %d late writes %d got through", len(lock.late), lock.passed()),
		check("with the lock alone deposits are lost", lock.lost() > 0, "%s", loss(lock)),
		check("with the guard the woken holders' late writes are refused", guard.passed() == 0 && fenced,
			"%d of %d got through, and one was refused with %q: %v", guard.passed(), len(guard.late), fencing.ErrStale, fenced),
		check("with the guard no deposit is lost", guard.lost() == 0 && guard.deposits > 0, "%s", loss(guard)),
	}
	for _, r := range []result{lock, guard} {
		in := fmt.Sprintf("act %d: ", r.number)
		findings = append(findings,
			finding{in + "nobody got in before the lease of the killed or paused holder had ended", r.succeededInTime()},
			finding{in + "tokens grow from grant to grant", r.tokensGrew()},
		)
	}
	return findings
}

// passed returns how many late writes got through.
func (r result) passed() (n int) {
	for _, w := range r.late {
		if w.passed {
			n++
		}
	}
	return n
}

func (r result) succeededInTime() string {
	if len(r.successions) == 0 {
		return "nobody was killed or paused"
	}
	for _, s := range r.successions {
		switch early := s.expiry.Sub(s.next.at); {
		case s.expiry.IsZero():
			return fmt.Sprintf("when token %d's lease was to end is not known", s.token)
		case early > 0:
			return fmt.Sprintf("token %d was granted %v before token %d's lease ended", s.next.token, early, s.token)
		}
	}
	return ""
}

// tokensGrew compares the order of tokens with the order of grants by the server's clock.
func (r result) tokensGrew() string {
	if len(r.grants) < 2 {
		return fmt.Sprintf("there were %d grants", len(r.grants))
	}
	inTime := slices.Clone(r.grants)
	slices.SortFunc(inTime, func(a, b grant) int { return a.at.Compare(b.at) })
	for i, g := range inTime[1:] {
		if before := inTime[i]; g.token <= before.token {
			return fmt.Sprintf("token %d was granted after token %d", g.token, before.token)
		}
	}
	return ""
}

// story prints what happens, as it happens. One goroutine uses it.
type story struct {
	out   io.Writer
	begun time.Time
}

// say prints a line with the time and the worker's name.
func (s *story) say(who, format string, args ...any) {
	fmt.Fprintf(s.out, "%7.2f  %-4s %s\n", time.Since(s.begun).Seconds(), who, fmt.Sprintf(format, args...))
}

func (s *story) heading(text string) { fmt.Fprintf(s.out, "\n%s\n", text) }

// results prints the table of all acts.
func (s *story) results(all []result) {
	s.heading(fmt.Sprintf("Result%25s %9s %9s %8s   late writes", "deposits", "balance", "lost", "grants"))
	for _, r := range all {
		fmt.Fprintf(s.out, "  %d  %-17s %9d %9d %9d %8d   %d got through, %d refused\n", r.number, r.name,
			r.deposits, r.balance, r.lost(), len(r.grants), r.passed(), len(r.late)-r.passed())
	}
	fmt.Fprintln(s.out)
}

// verdict prints the findings, and returns errNotAsExpected if one is bad.
func (s *story) verdict(findings []finding) error {
	wrong := 0
	for _, f := range findings {
		if f.fault == "" {
			fmt.Fprintln(s.out, "  ok      "+f.expected)
			continue
		}
		wrong++
		fmt.Fprintf(s.out, "  FAILED  %s\n          but %s\n", f.expected, f.fault)
	}
	if wrong > 0 {
		s.heading(fmt.Sprintf("Not as expected: %d of %d checks failed.", wrong, len(findings)))
		return errNotAsExpected
	}
	s.heading("As expected: a lock alone does not keep a paused holder from writing; its fencing token, checked\n" +
		"in the transaction that writes, does.")
	return nil
}
