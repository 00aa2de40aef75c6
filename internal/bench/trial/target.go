package trial

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Ref names a figure of a subject.
type Ref struct{ Subject, Figure string }

// Target is a bound for a figure, or for its ratio to another one.
type Target struct {
	What string // is compared, in a few words

	// Ours are the judged figures. Of several configurations of one thing the best counts and is named.
	Ours []Ref

	// Against is the divisor within each round. Without it the figure itself is judged.
	Against Ref

	Rule Rule
}

// Rule is the bound of a target.
type Rule struct {
	least bool
	bound float64
	every bool
	none  bool
}

// NoBound shows a comparison and requires nothing.
func NoBound() Rule { return Rule{none: true} }

// AtMost requires a median of at most bound.
func AtMost(bound float64) Rule { return Rule{bound: bound} }

// AtLeast requires a median of at least bound.
func AtLeast(bound float64) Rule { return Rule{least: true, bound: bound} }

// InEveryRound requires the bound in each round instead of the median, for events that must never
// happen.
func (r Rule) InEveryRound() Rule {
	r.every = true
	return r
}

// The text form of a rule.
const (
	atMost  = "≤ "
	atLeast = "≥ "
	inEvery = " in every round"
	noBound = "-"
)

func (r Rule) String() string {
	if r.none {
		return noBound
	}
	text := atMost
	if r.least {
		text = atLeast
	}
	text += strconv.FormatFloat(r.bound, 'f', -1, 64)
	if r.every {
		text += inEvery
	}
	return text
}

// MarshalText writes the rule as String does.
func (r Rule) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

// UnmarshalText reads what MarshalText writes.
func (r *Rule) UnmarshalText(text []byte) (err error) {
	if string(text) == noBound {
		*r = NoBound()
		return nil
	}
	bound, every := strings.CutSuffix(string(text), inEvery)
	bound, least := strings.CutPrefix(bound, atLeast)
	r.every, r.least = every, least
	if r.bound, err = strconv.ParseFloat(strings.TrimPrefix(bound, atMost), 64); err != nil {
		return fmt.Errorf("trial: no rule: %q", text)
	}
	return nil
}

// deciding returns the value that the rule judges.
func (r Rule) deciding(rounds []float64) float64 {
	switch {
	case !r.every:
		return median(rounds)
	case r.least:
		return slices.Min(rounds)
	}
	return slices.Max(rounds)
}

// holds reports whether the value is within the bound.
func (r Rule) holds(v float64) bool {
	if r.least {
		return v >= r.bound
	}
	return v <= r.bound
}

// better reports whether a is the better value of two.
func (r Rule) better(a, b float64) bool {
	if r.least {
		return a > b
	}
	return a < b
}

// refs returns the figures that the target needs.
func (t Target) refs() []Ref {
	if t.Against == (Ref{}) {
		return t.Ours
	}
	return append(slices.Clone(t.Ours), t.Against)
}

// compare returns the judged values of one of ours, round by round, and the series behind them. against
// is nil if there is none.
func (t Target) compare(o *Outcome, candidate Ref) (values []float64, ours, against *Series, err error) {
	if ours, err = o.find(candidate); err != nil {
		return nil, nil, nil, err
	}
	if t.Against == (Ref{}) {
		return ours.Rounds, ours, nil, nil
	}
	if against, err = o.find(t.Against); err != nil {
		return nil, nil, nil, err
	}
	if ours.Unit != against.Unit {
		return nil, nil, nil, fmt.Errorf("trial: %s against %s", ours.Unit, against.Unit)
	}
	values = make([]float64, len(ours.Rounds))
	for i := range values {
		if against.Rounds[i] == 0 {
			return nil, nil, nil, fmt.Errorf("trial: %s of %q is 0 in round %d: no ratio to it", t.Against.Figure, t.Against.Subject, i+1)
		}
		values[i] = ours.Rounds[i] / against.Rounds[i]
	}
	return values, ours, against, nil
}
