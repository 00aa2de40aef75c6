package waitlist

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pglock/pglock-go/leasetable"
)

// TestASoloAttemptIsAlone: no call waits, and no other makes an attempt outside of the queue.
func TestASoloAttemptIsAlone(t *testing.T) {
	t.Parallel()
	f := newFixture()
	defer f.stop()
	e := f.push()
	if f.BeginSolo("n") {
		t.Error("beside a call that waits")
	}
	e.Leave(false)
	if !f.BeginSolo("n") || f.BeginSolo("n") || !f.BeginSolo("m") {
		t.Error("not alone, or twice")
	}
	f.EndSolo("n")
	if !f.BeginSolo("n") {
		t.Error("not after the other one's end")
	}
}

// TestTheNextHeadKnowsOfTheGrant: it waits for the hand-off then, instead of making an attempt.
func TestTheNextHeadKnowsOfTheGrant(t *testing.T) {
	t.Parallel()
	f := newFixture()
	defer f.stop()
	first, second, third := f.push(), f.push(), f.push()
	if first.AfterGrant {
		t.Error("the first one came after a grant")
	}
	first.Leave(true)
	if !second.AfterGrant {
		t.Error("the next head does not know of the grant")
	}
	second.Leave(false)
	if third.AfterGrant {
		t.Error("the head after one that gave up knows of a grant")
	}
	third.Leave(false)
}

// TestALossOfAnOldTicket leaves the new one alone, and wakes no caller.
func TestALossOfAnOldTicket(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFixture()
		for _, e := range []*Entry{f.push(), f.pushAll()} {
			f.draw(t, e)
			old := f.ticket(e)
			f.draw(t, e)
			current := f.ticket(e)
			f.looked(old, leasetable.Position{}, nil)
			if !e.Row().Joined() || len(e.Woken) != 0 {
				t.Errorf("%v: the loss of %d ended %d", old.Names, old.Number, current.Number)
			}
			f.looked(current, leasetable.Position{}, nil)
			if e.Row().Joined() || len(e.Woken) != 1 {
				t.Errorf("%v: the loss of %d was not noticed", old.Names, current.Number)
			}
			e.Leave(false)
		}
		f.stop()
	})
}

// TestAQueueIsKeptWhileItsTicketIsDrawn, although no caller waits any more: the end of the
// statement drops the queue, which must not be that of another caller then.
func TestAQueueIsKeptWhileItsTicketIsDrawn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFixture()
		e := f.push()
		ctx, cancel := context.WithTimeout(t.Context(), time.Microsecond) // the statement takes longer
		defer cancel()
		if _, err := e.DrawTicket(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("DrawTicket: %v", err)
		}
		gone := e.Leave(false)
		if due, idle, rows := f.collect(time.Now()); len(due)+len(idle) != 0 || !rows {
			t.Errorf("collected %v and %v, and rows: %v", due, idle, rows)
		}
		next := f.push()
		<-gone
		if !f.WakeHead("n") || len(next.Woken) != 1 {
			t.Error("the next caller is not found")
		}
		next.Leave(false)
		f.stop()
	})
}

// TestATicketForSeveralNamesIsAwaitedAtEach: until it is deleted, it would keep the next caller for
// one of them from a free lock.
func TestATicketForSeveralNamesIsAwaitedAtEach(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"m", "n", Key("", []string{"m", "n"})} {
		synctest.Test(t, func(t *testing.T) {
			f := newFixture()
			f.server.failLeave = 3
			e := f.pushAll()
			f.draw(t, e)
			e.Leave(false)
			f.AwaitRemoval(t.Context(), name)
			if f.server.row("m") != 0 || f.server.row("n") != 0 {
				t.Errorf("a caller for %q does not wait", name)
			}
			f.stop()
		})
	}
}

// TestDeletionsForOneNameAreNotSentAtOnce: the last caller has left when the notification of its
// own release arrives. Each of the two deletions wakes the next client, so both are sent.
func TestDeletionsForOneNameAreNotSentAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFixture()
		e := f.push()
		f.draw(t, e)
		f.server.failLeave = 1
		e.Leave(true)
		f.listener.notified("n")
		f.AwaitRemoval(t.Context(), "n")
		f.stop()
		if f.server.together != 1 || f.server.failLeave != 0 || f.server.row("n") != 0 {
			t.Errorf("%d deletions at once, %d that failed are left", f.server.together, f.server.failLeave)
		}
	})
}

// TestANotificationForAClosedClient: nothing is deleted any more, and no caller waits for that.
func TestANotificationForAClosedClient(t *testing.T) {
	t.Parallel()
	f := newFixture()
	defer f.stop()
	f.client.closed = true
	f.listener.notified("n")
	if len(f.removals) != 0 {
		t.Error("a removal is noted that does not begin")
	}
}

// TestABusyAnswerIsTrustedAsLongAsItsGrant, not longer: the holder may be another one by then.
func TestABusyAnswerIsTrustedAsLongAsItsGrant(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFixture()
		e := f.push()
		if _, ok := e.LastBusy(); ok {
			t.Error("before the first answer")
		}
		e.NoteBusy(leasetable.Grant{Outcome: leasetable.Busy, Token: 1, Holder: "h", Remaining: time.Second})
		pass(400 * time.Millisecond)
		if g, ok := e.LastBusy(); !ok || g.Holder != "h" || g.Remaining != 600*time.Millisecond {
			t.Errorf("%+v, %v", g, ok)
		}
		pass(600 * time.Millisecond)
		if g, ok := e.LastBusy(); ok {
			t.Errorf("after the expiry: %+v", g)
		}
		e.Leave(false)
		f.stop()
	})
}

// TestTheOverflowListIsLeftWhileItMoves: a look in progress replaces the entry by a ticket, which
// is deleted too.
func TestTheOverflowListIsLeftWhileItMoves(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFixture()
		f.server.overflow = true
		e := f.push()
		f.draw(t, e)
		entry := f.ticket(e)
		f.server.set(func() { f.server.rows["n"] = 100 }) // the answer to the refresh is on its way
		<-e.Leave(false)
		f.looked(entry, leasetable.Position{State: leasetable.Queued, Ticket: 100}, nil)
		if f.server.row("n") != 0 {
			t.Error("the ticket stays")
		}
		f.stop()
	})
}

// TestABusyAnswerSaysUntilWhen: the head sleeps until the blocking grant expires.
func TestABusyAnswerSaysUntilWhen(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFixture()
		e := f.push()
		e.NoteBusy(leasetable.Grant{Remaining: time.Minute})
		pass(20 * time.Second)
		if held := e.Held(); held != 40*time.Second {
			t.Errorf("held for another %v", held)
		}
		e.Leave(false)
		f.stop()
	})
}
