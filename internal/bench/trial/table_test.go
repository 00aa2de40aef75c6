package trial

import (
	"context"
	"strings"
	"testing"
)

// judged is a row with one target of each status.
func judged(t *testing.T) *Outcome {
	t.Helper()
	return run(t, Row{
		Number: "B0", What: "something",
		Prepare:  func(_ context.Context, s *Scope) error { s.Server("redis", "8.6.3"); return nil },
		Subjects: []Subject{plays("ours", Ours, 30, 31, 32), plays("floor", Floor, 10, 10, 10), absent("redis")},
		Targets: []Target{
			ratio(AtMost(4), "floor", "ours"), ratio(AtMost(1.5), "floor", "ours"),
			ratio(AtLeast(2), "redis", "ours"), ratio(AtMost(31).InEveryRound(), "", "ours"),
			ratio(AtLeast(30).InEveryRound(), "", "ours"),
		},
	}, threeRounds)
}

func TestTableHasALineForEachTarget(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	if err := WriteTable(&out, []*Outcome{judged(t)}); err != nil {
		t.Fatal(err)
	}
	const want = `row  what   ours                      floor or peer  ratio (range)     target               verdict
B0   ratio  ours 31 us                floor 10 us    3.10 (3.00-3.20)  ≤ 4                  PASS
B0   ratio  ours 31 us                floor 10 us    3.10 (3.00-3.20)  ≤ 1.5                MISS
B0   ratio  -                         -              -                 ≥ 2                  MISSING redis
B0   ratio  ours 31 us, at most 32 us  -              -                 ≤ 31 in every round  MISS
B0   ratio  ours 31 us, at least 30 us -              -                 ≥ 30 in every round  PASS
`
	if squeeze(out.String()) != squeeze(want) {
		t.Errorf("got\n%swant\n%s", out.String(), want)
	}
}

// squeeze leaves one space where the columns are lined up with more.
func squeeze(table string) string { return strings.Join(strings.Fields(table), " ") }

func TestFiguresNameWhatIsMissing(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	if err := judged(t).WriteFigures(&out); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"servers of peers: map[redis:8.6.3]", "ours ours f 31 us 30 us to 32 us", "floor floor f 10 us", "redis missing: trial: missing: install redis"} {
		if !strings.Contains(squeeze(out.String()), want) {
			t.Errorf("no %q in\n%s", want, out.String())
		}
	}
}
