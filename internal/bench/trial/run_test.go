package trial

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

// script is a meter that yields one value a round, and notes its turns.
type script struct {
	name   string
	unit   Unit
	values []float64
	turns  *[]string
	err    error
}

func (m *script) Turn(context.Context, time.Duration) error {
	if m.turns != nil {
		*m.turns = append(*m.turns, m.name)
	}
	return m.err
}

func (m *script) Figures() []Figure {
	f := Figure{Name: "f", Unit: m.unit, Value: m.values[0]}
	m.values = m.values[1:]
	return []Figure{f}
}

// plays is a subject that yields the values, after one for the warm-up that must not count.
func plays(name string, role Role, values ...float64) Subject {
	return Subject{Name: name, Role: role, Open: func(context.Context, *Scope) (Meter, error) {
		return &script{name: name, unit: Micros, values: append([]float64{1e6}, values...)}, nil
	}}
}

func absent(name string) Subject {
	return Subject{Name: name, Role: Peer, Open: func(context.Context, *Scope) (Meter, error) {
		return nil, fmt.Errorf("%w: install %s", ErrMissing, name)
	}}
}

func ratio(rule Rule, against, ours string) Target {
	t := Target{What: "ratio", Rule: rule, Ours: Ref{ours, "f"}}
	if against != "" {
		t.Against = Ref{against, "f"}
	}
	return t
}

var threeRounds = Scale{Rounds: 3, Turns: 1}

func run(t *testing.T, row Row, scale Scale) *Outcome {
	t.Helper()
	o, err := Run(t.Context(), row, scale)
	if err != nil {
		t.Fatal(err)
	}
	return o
}

func TestTargetsAreJudgedOnTheMedianRatioOfRounds(t *testing.T) {
	t.Parallel()
	// Medians of the sides would give 40/10 = 4; round by round it is 2, 4, 3.
	subjects := []Subject{plays("ours", Ours, 20, 40, 90), plays("floor", Floor, 10, 10, 30)}
	for _, c := range []struct {
		rule Rule
		want Status
	}{
		{AtMost(3), Pass},
		{AtMost(2.9), Miss},
		{AtLeast(3), Pass},
		{AtLeast(3.1), Miss},
		{AtMost(4).InEveryRound(), Pass},
		{AtMost(3.9).InEveryRound(), Miss},
		{AtLeast(2).InEveryRound(), Pass},
		{AtLeast(2.1).InEveryRound(), Miss},
	} {
		o := run(t, Row{Number: "B0", Subjects: subjects, Targets: []Target{ratio(c.rule, "floor", "ours")}}, threeRounds)
		v := o.Verdicts[0]
		if v.Status != c.want {
			t.Errorf("%v: %s, want %s", c.rule, v.Status, c.want)
		}
		if *v.Ratio != (Spread{Median: 3, Min: 2, Max: 4}) || !v.Unsteady {
			t.Errorf("%v: ratio %+v, unsteady %v", c.rule, *v.Ratio, v.Unsteady)
		}
	}
}

func TestAFigureAloneIsJudged(t *testing.T) {
	t.Parallel()
	row := Row{Number: "B0", Subjects: []Subject{plays("ours", Ours, 0, 8, 0)}, Targets: []Target{
		ratio(AtMost(0), "", "ours"), ratio(AtMost(0).InEveryRound(), "", "ours"),
	}}
	v := run(t, row, threeRounds).Verdicts
	if v[0].Status != Pass || v[1].Status != Miss || v[0].Ratio != nil {
		t.Errorf("median 0: %s, a round above 0: %s, ratio %v", v[0].Status, v[1].Status, v[0].Ratio)
	}
}

func TestAMissingPeerIsNamedAndNotJudged(t *testing.T) {
	t.Parallel()
	row := Row{Number: "B0", Subjects: []Subject{plays("ours", Ours, 1, 1, 1), absent("redis"), plays("floor", Floor, 1, 1, 1)}, Targets: []Target{
		ratio(AtMost(1), "redis", "ours"), ratio(AtMost(1), "floor", "ours"),
	}}
	o := run(t, row, threeRounds)
	if len(o.Missing) != 1 || o.Missing[0].Subject != "redis" || !strings.Contains(o.Missing[0].Why, "install redis") {
		t.Errorf("missing: %+v", o.Missing)
	}
	if v := o.Verdicts[0]; v.Status != Missing || v.Ours != nil || v.Ratio != nil || !slices.Equal(v.Missing, []string{"redis"}) {
		t.Errorf("the target that needs it: %+v", v)
	}
	if v := o.Verdicts[1]; v.Status != Pass {
		t.Errorf("the target that doesn't: %+v", v)
	}
}

func TestAShortRunAndATargetWithoutABoundAreNotJudged(t *testing.T) {
	t.Parallel()
	row := Row{Number: "B0", Subjects: []Subject{plays("ours", Ours, 9), plays("floor", Floor, 1)}, Targets: []Target{
		ratio(AtMost(1), "floor", "ours"), ratio(Rule{}, "floor", "ours"),
	}}
	for short, want := range map[bool][]Status{true: {NotJudged, NotJudged}, false: {Miss, NotJudged}} {
		v := run(t, row, Scale{Rounds: 1, Turns: 1, Short: short}).Verdicts
		if got := []Status{v[0].Status, v[1].Status}; !slices.Equal(got, want) {
			t.Errorf("short %v: %s, want %s", short, got, want)
		}
	}
}

func TestSubjectsTakeTurnsAndAnotherIsFirstEachTime(t *testing.T) {
	t.Parallel()
	var turns []string
	noting := func(name string) Subject {
		return Subject{Name: name, Open: func(context.Context, *Scope) (Meter, error) {
			return &script{name: name, unit: Micros, values: []float64{1, 1}, turns: &turns}, nil
		}}
	}
	run(t, Row{Number: "B0", Subjects: []Subject{noting("a"), noting("b"), noting("c")}}, Scale{Rounds: 1, Turns: 2})
	if got := strings.Join(turns, ""); got != "abcbca"+"abcbca" {
		t.Errorf("turns of the warm-up and of one round: %s", got)
	}
}

func TestARowThatCountsTakesLongTurns(t *testing.T) {
	t.Parallel()
	var turns []time.Duration
	subject := Subject{Name: "ours", Open: func(context.Context, *Scope) (Meter, error) { return lengths{&turns}, nil }}
	scale := Scale{Rounds: 2, Turns: 5, Turn: time.Second, LongTurn: time.Minute}
	row := Row{Number: "B0", Throughput: true, Subjects: []Subject{subject}}
	if o := run(t, row, scale); o.Scale.Turns != 1 || o.Scale.Turn != time.Minute {
		t.Errorf("measured at %+v", o.Scale)
	}
	if want := []time.Duration{time.Minute, time.Minute, time.Minute}; !slices.Equal(turns, want) {
		t.Errorf("turns of the warm-up and two rounds: %v, want %v", turns, want)
	}
}

// lengths is a meter that notes the lengths of its turns.
type lengths struct{ turns *[]time.Duration }

func (m lengths) Turn(_ context.Context, d time.Duration) error {
	*m.turns = append(*m.turns, d)
	return nil
}
func (lengths) Figures() []Figure { return []Figure{{"f", Micros, 1}} }

func TestUnsteadyFiguresAreMarked(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		unsteady bool
		rounds   []float64
	}{{false, []float64{10, 12, 15}}, {true, []float64{10, 12, 15.1}}, {false, []float64{0, 0, 0}}, {true, []float64{0, 0, 1}}} {
		o := run(t, Row{Number: "B0", Subjects: []Subject{plays("ours", Ours, c.rounds...)}, Targets: []Target{ratio(AtMost(9), "", "ours")}}, threeRounds)
		if o.Series[0].Unsteady != c.unsteady || o.Verdicts[0].Unsteady != c.unsteady {
			t.Errorf("%v: the figure %v, the verdict %v", c.rounds, o.Series[0].Unsteady, o.Verdicts[0].Unsteady)
		}
		text, err := json.Marshal(o)
		if err != nil || strings.Contains(string(text), `"unsteady":true`) != c.unsteady {
			t.Errorf("%v, %v: %s", c.rounds, err, text)
		}
		var table strings.Builder
		if err := errors.Join(o.WriteFigures(&table), WriteTable(&table, []*Outcome{o})); err != nil {
			t.Fatal(err)
		}
		if n := strings.Count(table.String(), "unsteady"); n != map[bool]int{true: 2}[c.unsteady] {
			t.Errorf("%v: marked %d times in\n%s", c.rounds, n, &table)
		}
	}
}

func TestWhateverWasOpenedIsClosedInReverse(t *testing.T) {
	t.Parallel()
	broken := errors.New("broken")
	for _, where := range []string{"", "prepare", "open", "turn", "close"} {
		var closed []string
		closing := func(name string) func() error {
			return func() error {
				closed = append(closed, name)
				if where == "close" && name == "table" {
					return broken
				}
				return nil
			}
		}
		failing := func(here string) error {
			if where == here {
				return broken
			}
			return nil
		}
		_, err := Run(t.Context(), Row{
			Number: "B0",
			Prepare: func(_ context.Context, s *Scope) error {
				s.Defer(closing("server"))
				s.Defer(closing("table"))
				return failing("prepare")
			},
			Subjects: []Subject{{Name: "ours", Open: func(_ context.Context, s *Scope) (Meter, error) {
				s.Defer(closing("client"))
				return &script{unit: Micros, values: []float64{1, 1}, err: failing("turn")}, failing("open")
			}}},
		}, Scale{Rounds: 1, Turns: 1})
		if (where != "") != errors.Is(err, broken) {
			t.Errorf("failing in %q: %v", where, err)
		}
		want := "client table server"
		if where == "prepare" {
			want = "table server"
		}
		if got := strings.Join(closed, " "); got != want {
			t.Errorf("failing in %q: closed %q, want %q", where, got, want)
		}
	}
}

func TestWhatCanNotBeComparedIsAnError(t *testing.T) {
	t.Parallel()
	bytes := Subject{Name: "bytes", Open: func(context.Context, *Scope) (Meter, error) {
		return &script{unit: Bytes, values: []float64{1, 1}}, nil
	}}
	ours, zero := plays("ours", Ours, 1), plays("zero", Floor, 0)
	for want, row := range map[string]Row{
		"two subjects":     {Subjects: []Subject{ours, ours}},
		`of "floor"`:       {Subjects: []Subject{ours}, Targets: []Target{ratio(AtMost(1), "floor", "ours")}},
		"no figure":        {Subjects: []Subject{ours}, Targets: []Target{{Ours: Ref{"ours", "g"}, Rule: AtMost(1)}}},
		"us against bytes": {Subjects: []Subject{ours, bytes}, Targets: []Target{ratio(AtMost(1), "bytes", "ours")}},
		"no ratio to it":   {Subjects: []Subject{ours, zero}, Targets: []Target{ratio(AtMost(1), "zero", "ours")}},
		"is no number":     {Subjects: []Subject{{Name: "idle", Open: func(context.Context, *Scope) (Meter, error) { return idle{}, nil }}}},
	} {
		if _, err := Run(t.Context(), row, Scale{Rounds: 1, Turns: 1}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want an error that says %q, got %v", want, err)
		}
	}
}

// idle is a meter that never gets anything done.
type idle struct{}

func (idle) Turn(context.Context, time.Duration) error { return nil }
func (idle) Figures() []Figure                         { return NewLatencies().Figures("f") }
