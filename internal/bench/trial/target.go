package trial

import (
	"fmt"
	"slices"
	"strconv"
)

// Ref names a figure of a subject.
type Ref struct{ Subject, Figure string }

// Target is a bound for a figure, or for its ratio to another one.
type Target struct {
	What string // is compared, in a few words
	Ours Ref    // the judged figure

	// Against is the divisor within each round. Without it the figure itself is judged.
	Against Ref

	Rule Rule
}

// Rule is the bound of a target. The zero Rule requires nothing, so the comparison is only shown.
type Rule struct {
	sign  string
	bound float64
	every bool
}

// The text form of a rule.
const (
	atMost  = "≤ "
	atLeast = "≥ "
	inEvery = " in every round"
)

// AtMost requires a median of at most bound.
func AtMost(bound float64) Rule { return Rule{sign: atMost, bound: bound} }

// AtLeast requires a median of at least bound.
func AtLeast(bound float64) Rule { return Rule{sign: atLeast, bound: bound} }

// InEveryRound requires the bound in each round instead of the median, for events that must never
// happen.
func (r Rule) InEveryRound() Rule {
	r.every = true
	return r
}

func (r Rule) String() string {
	if r.sign == "" {
		return "-"
	}
	text := r.sign + strconv.FormatFloat(r.bound, 'f', -1, 64)
	if r.every {
		text += inEvery
	}
	return text
}

// holds reports whether the rounds are within the bound.
func (r Rule) holds(rounds []float64) bool {
	least, most := median(rounds), median(rounds)
	if r.every {
		least, most = slices.Min(rounds), slices.Max(rounds)
	}
	if r.sign == atLeast {
		return least >= r.bound
	}
	return most <= r.bound
}

// ratios divides one series by another one, round by round.
func ratios(ours, against *Series) ([]float64, error) {
	if ours.Unit != against.Unit {
		return nil, fmt.Errorf("trial: %s against %s", ours.Unit, against.Unit)
	}
	values := slices.Clone(ours.Rounds)
	for i, divisor := range against.Rounds {
		if divisor == 0 {
			return nil, fmt.Errorf("trial: %s of %q is 0 in round %d: no ratio to it", against.Figure, against.Subject, i+1)
		}
		values[i] /= divisor
	}
	return values, nil
}
