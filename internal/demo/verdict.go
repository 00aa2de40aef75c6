package main

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
)

// errNotAsExpected means that the demo ran, and showed something else than it should.
var errNotAsExpected = errors.New("demo: not as expected")

// result is what an act came to.
type result struct {
	act
	deposits int64 // entries
	balance  int64
	grants   int
	late     []event // what holders reported after they were woken
}

// lost returns how many deposits the balance lacks.
func (r result) lost() int64 { return r.deposits - r.balance }

// passed returns how many late writes got through.
func (r result) passed() (n int) {
	for _, w := range r.late {
		if w.Kind == wrote {
			n++
		}
	}
	return n
}

// finding is one thing that should have come about, and whether it did.
type finding struct {
	expected string
	ok       bool
}

// judge compares the acts with what each of them is to show.
func judge(none, lock, guard result) []finding {
	fenced := slices.ContainsFunc(guard.late, func(w event) bool {
		return slices.ContainsFunc(w.Reasons, func(reason string) bool { return strings.HasPrefix(reason, byFence) })
	})
	return []finding{
		{"without a lock deposits are lost", none.lost() > 0},
		{"with the lock alone the woken holder's late write gets through", lock.passed() > 0 && lock.passed() == len(lock.late)},
		{"with the lock alone deposits are lost", lock.lost() > 0},
		{"with the guard the woken holders' late writes are refused, one of them by the server", guard.passed() == 0 && fenced},
		{"with the guard no deposit is lost", guard.lost() == 0 && guard.deposits > 0},
	}
}

// story prints what happens, as it happens. It is for one goroutine.
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
			r.deposits, r.balance, r.lost(), r.grants, r.passed(), len(r.late)-r.passed())
	}
	fmt.Fprintln(s.out)
}

// verdict prints the findings, and returns errNotAsExpected if one is bad.
func (s *story) verdict(findings []finding) error {
	wrong := 0
	for _, f := range findings {
		if f.ok {
			fmt.Fprintln(s.out, "  ok      "+f.expected)
			continue
		}
		wrong++
		fmt.Fprintln(s.out, "  FAILED  "+f.expected)
	}
	if wrong > 0 {
		s.heading(fmt.Sprintf("Not as expected: %d of %d checks failed.", wrong, len(findings)))
		return errNotAsExpected
	}
	s.heading("As expected: a lock alone does not keep a paused holder from writing; its fencing token, checked\n" +
		"in the transaction that writes, does.")
	return nil
}
