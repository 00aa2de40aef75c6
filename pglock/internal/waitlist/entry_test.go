package waitlist

import (
	"testing"
	"time"

	"github.com/pglock/pglock-go/leasetable"
)

// TestAGrantHasOneOwner: while a lock is being handed off to an entry, and until the entry has
// taken the result, it makes no attempt: the same grant would be returned twice and revoked once.
func TestAGrantHasOneOwner(t *testing.T) {
	t.Parallel()
	f := newFixture()
	defer f.stop()
	e := f.push()
	may := func(want bool, when string) {
		t.Helper()
		_, ok := e.BeginAttempt()
		if ok {
			e.EndAttempt(e.Request().ID, leasetable.NoTicket, true, false)
		}
		if ok != want {
			t.Errorf("%s it may make an attempt: %v", when, ok)
		}
	}
	may(true, "at rest")
	if f.Reserve("n") != e || f.Reserve("n") != nil {
		t.Error("it was not reserved, or twice")
	}
	may(false, "reserved")
	if !e.Deliver(Answer{Grant: leasetable.Grant{Outcome: leasetable.Granted}}) {
		t.Error("it was not handed off")
	}
	may(false, "handed off")
	if f.Reserve("n") != nil {
		t.Error("it was reserved with a grant in its hands")
	}
	<-e.Handed
	may(false, "while its caller checks the grant")
	if f.Reserve("n") != nil {
		t.Error("it was reserved while its caller checks the grant")
	}
	e.EndHandoff("next")
	if id := e.Request().ID; id != "next" {
		t.Errorf("the next hand-off is for %q", id)
	}
	may(true, "when that is done")
	f.Reserve("n")
	e.Leave(false)
	if e.Deliver(Answer{}) {
		t.Error("an entry that has left got the lock")
	}
	if len(f.queues) > 0 {
		t.Error("the queue is still there")
	}
}

// TestARequestIsReplaced: who has read the request before, in order to hand the lock off, sees no
// change.
func TestARequestIsReplaced(t *testing.T) {
	t.Parallel()
	f := newFixture()
	defer f.stop()
	e := f.push()
	defer e.Leave(false)
	before := e.Request()
	e.EndAttempt(before.ID, leasetable.NoTicket, true, false)
	if e.Request() != before {
		t.Error("the same ID made another request")
	}
	e.EndAttempt("other", leasetable.NoTicket, true, false)
	if after := e.Request(); after.ID != "other" || after.Name != before.Name || before.ID == "other" {
		t.Errorf("%+v became %+v", before, after)
	}
}

// TestLeavingALongQueueCostsTheSame: one of many local callers for a name leaves as fast as one of
// a few, from the front, the middle or the end. A search through the queue would take thirty times
// longer. The fastest hundred of those that leave counts, since the machine may be busy with
// something else.
func TestLeavingALongQueueCostsTheSame(t *testing.T) {
	t.Parallel()
	for name, pick := range map[string]func(i, n int) int{
		"front":  func(i, _ int) int { return i },
		"end":    func(i, n int) int { return n - 1 - i },
		"middle": func(i, n int) int { return (i + n/2) % n },
	} {
		each := func(n int) time.Duration {
			f := newFixture()
			defer f.stop()
			entries := make([]*Entry, n)
			for i := range entries {
				entries[i] = f.push()
			}
			least, began := time.Hour, time.Now()
			for i := range entries {
				if entries[pick(i, n)].Leave(false); i%100 == 99 {
					if i < n/2 { // while the queue is long
						least = min(least, time.Since(began)/100)
					}
					began = time.Now()
				}
			}
			if len(f.queues) > 0 {
				t.Errorf("%s: the queue of %d is still there", name, n)
			}
			return least
		}
		if few, many := each(1000), each(30_000); many > 10*max(few, time.Microsecond/2) {
			t.Errorf("%s: a caller leaves after %v among many, after %v among few", name, many, few)
		}
	}
}

// TestAHandOffLooksAtTheKind: a caller that takes the name for a semaphore is not granted a lock
// with one holder. And an entry behind the head makes an attempt without the queue's ticket.
func TestAHandOffLooksAtTheKind(t *testing.T) {
	t.Parallel()
	f := newFixture()
	defer f.stop()
	e := f.Push(&leasetable.Request{Name: "n", ID: "1", Permits: leasetable.Permits{Capacity: 3, Weight: 1}}, time.Now())
	if f.Reserve("n") != nil {
		t.Error("it was reserved")
	}
	second := f.push()
	e.queue.row = Row{rowQueued, 7}
	for entry, want := range map[*Entry]int64{e: 7, second: leasetable.NoTicket} {
		ticket, ok := entry.BeginAttempt()
		if !ok || ticket != want {
			t.Errorf("the ticket is %d, %v, want %d", ticket, ok, want)
		}
		entry.EndAttempt("2", ticket, true, false)
	}
	e.queue.row = Row{}
	e.Leave(false)
	if f.Reserve("n") != second {
		t.Error("the control was not reserved")
	}
	second.CancelHandoff()
	second.Leave(false)
}
