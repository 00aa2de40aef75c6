package main

import (
	"fmt"
	"io"
	"time"
)

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

// lateWrite tells the outcome of a woken holder's write.
func (s *story) lateWrite(w lateWrite, balance int64) {
	if w.passed {
		s.say(w.holder, "STALE WRITE: writes %d with token %d; nothing refuses it", balance, w.token)
	}
	for _, r := range w.refusals {
		s.say(w.holder, "REFUSED by %s: %s", r.By, r.Error)
	}
}

// results prints the table of all acts.
func (s *story) results(all []result) {
	s.heading(fmt.Sprintf("Result%25s %9s %9s %8s   late writes", "deposits", "balance", "lost", "grants"))
	for _, r := range all {
		passed := 0
		for _, w := range r.late {
			if w.passed {
				passed++
			}
		}
		fmt.Fprintf(s.out, "  %d  %-17s %9d %9d %9d %8d   %d got through, %d refused\n", r.number, r.name,
			r.deposits, r.balance, r.lost(), len(r.grants), passed, len(r.late)-passed)
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
