package leasetable

import "testing"

// TestAGrantHasOneOwner: while a lock is being handed over to a turn, and until what came
// of it is taken, the turn asks nothing: the same grant would be answered twice, and given
// back once.
func TestAGrantHasOneOwner(t *testing.T) {
	t.Parallel()
	q := &queue{lines: map[string]*line{}}
	turn := q.join(&acquisition{name: "n"})
	may := func(want bool, when string) {
		t.Helper()
		_, ok := q.ask(turn)
		if ok {
			q.asked(turn, 0, false)
		}
		if ok != want {
			t.Errorf("%s it may ask: %v", when, ok)
		}
	}
	may(true, "at rest")
	if q.reserve("n") != turn || q.reserve("n") != nil {
		t.Error("it was not reserved, or twice")
	}
	may(false, "reserved")
	if !q.handOver(turn, answer{grant: grant{outcome: granted}}) {
		t.Error("it was not handed over")
	}
	may(false, "handed over")
	if q.reserve("n") != nil {
		t.Error("it was reserved with a grant in its hands")
	}
	<-turn.handed
	may(true, "when that is taken")
	q.reserve("n")
	q.leave(turn, false)
	if q.handOver(turn, answer{}) {
		t.Error("it was handed over to somebody who has left")
	}
	if len(q.lines) != 0 {
		t.Error("the line is still there")
	}
}
