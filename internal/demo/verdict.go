package main

import (
	"errors"
	"fmt"
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
	findings := []finding{
		{"without a lock deposits are lost", none.lostSome()},
		{"with the lock alone the woken holder's late write gets through", lock.latePassed()},
		{"with the lock alone deposits are lost", lock.lostSome()},
		{"with the guard the woken holders' late writes are refused", guard.lateRefused()},
		{"with the guard no deposit is lost", guard.lostNone()},
	}
	for _, r := range []result{lock, guard} {
		in := fmt.Sprintf("act %d: ", r.number)
		findings = append(findings,
			finding{in + "nobody got in before the lease of the killed or paused holder had ended", r.succeededInTime()},
			finding{in + "tokens grow from grant to grant", r.tokensGrew()},
			finding{in + "entries are in token order, but for late writes that got through", r.entriesInOrder()},
		)
	}
	return append(findings, finding{"tokens grow from act to act", followed(lock, guard)})
}

func (r result) lostSome() string {
	if r.lost() > 0 {
		return ""
	}
	return fmt.Sprintf("of %d deposits %d were lost", r.deposits, r.lost())
}

func (r result) lostNone() string {
	if r.lost() == 0 && r.deposits > 0 {
		return ""
	}
	return fmt.Sprintf("of %d deposits %d were lost", r.deposits, r.lost())
}

func (r result) latePassed() string {
	if len(r.late) == 0 {
		return "nobody wrote late"
	}
	for _, w := range r.late {
		if !w.passed {
			return fmt.Sprintf("%s's write with token %d was refused", w.holder, w.token)
		}
	}
	return ""
}

// lateRefused wants every late write refused, and one at least by the comparison
// of tokens.
func (r result) lateRefused() string {
	fenced := false
	for _, w := range r.late {
		if w.passed {
			return fmt.Sprintf("%s's write with token %d got through", w.holder, w.token)
		}
		fenced = fenced || slices.ContainsFunc(w.refusals, func(why refusal) bool { return why.By == byFence })
	}
	if !fenced {
		return fmt.Sprintf("none of %d was refused with %q", len(r.late), fencing.ErrStale)
	}
	return ""
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

func (r result) entriesInOrder() string {
	late := map[int64]int{}
	for _, w := range r.late {
		if w.passed {
			late[w.token]++
		}
	}
	for _, token := range r.overdue {
		if late[token]--; late[token] < 0 {
			return fmt.Sprintf("token %d wrote after a newer one", token)
		}
	}
	for token, missing := range late {
		if missing > 0 {
			return fmt.Sprintf("token %d's late write was not after a newer one's", token)
		}
	}
	return ""
}

// followed reports whether all grants of b are newer than those of a.
func followed(a, b result) string {
	var last int64
	for _, g := range a.grants {
		last = max(last, g.token)
	}
	for _, g := range b.grants {
		if g.token <= last {
			return fmt.Sprintf("act %d had token %d, and act %d token %d", a.number, last, b.number, g.token)
		}
	}
	return ""
}
