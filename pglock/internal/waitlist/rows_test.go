package waitlist

import (
	"context"
	"errors"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pglock/pglock-go/internal/timing"
	"github.com/pglock/pglock-go/leasetable"
)

// draw draws a ticket for the entry.
func (f fixture) draw(t *testing.T, e *Entry) {
	t.Helper()
	if _, err := e.DrawTicket(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// ticket returns the ticket of the entry's queue, or its entry in the overflow list.
func (f fixture) ticket(e *Entry) leasetable.Ticket {
	f.mu.Lock()
	defer f.mu.Unlock()
	return e.queue.ticket()
}

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

// TestALossOfAnOldTicket leaves the new one alone, and wakes nobody.
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

// TestAQueueIsKeptWhileItsTicketIsDrawn, although nobody waits any more: the end of the statement drops
// the queue, which must not be that of another caller then.
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

// TestTicketsForSeveralNamesAreRefreshedInEachRound, and those for one name only now and then. When
// the client stops, it leaves no row.
func TestTicketsForSeveralNamesAreRefreshedInEachRound(t *testing.T) {
	t.Parallel()
	const watched = 5 * timing.RefreshEvery
	synctest.Test(t, func(t *testing.T) {
		for _, kind := range []string{"one name", "several names", "several permits"} {
			f := newFixture()
			e := f.push()
			least, most := 2, int(watched/timing.RefreshEvery)
			if kind != "one name" {
				e.Leave(false)
				if e = f.pushAll(); kind == "several permits" {
					e.Leave(false)
					e = f.Push(&leasetable.Request{Name: "n", Permits: leasetable.Permits{Capacity: 3, Weight: 2}}, time.Now())
				}
				least, most = int(watched/timing.SweepEvery)-1, 2*int(watched/timing.SweepEvery)
			}
			f.draw(t, e)
			pass(watched)
			if n := f.server.refreshes(); n < least || n > most {
				t.Errorf("%s: refreshed %d times, want %d to %d", kind, n, least, most)
			}
			f.server.mu.Lock()
			f.server.rows["left"] = 1 // a row that the list does not know
			f.server.mu.Unlock()
			e.Leave(false)
			f.stop()
			if !f.server.quit || f.server.row("left") != 0 {
				t.Error("rows stay when the client stops")
			}
		}
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

// TestDeletionsForOneNameAreNotSentAtOnce: the last caller has left when the notification of its own release
// arrives. Each of the two deletions wakes the next client, so both are sent.
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

// TestANotificationForAClosedClient: nothing is deleted any more, and nobody waits for that.
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

// TestAPlaceInLine: a waiter far behind the head needs no listening connection, and makes no attempt with a
// ticket. It looks now and then, more often in a queue that moves, until it gets a ticket.
func TestAPlaceInLine(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f, opened := listening(true)
		ahead, entered := inLine, false
		f.server.line = true
		f.server.look = func(t leasetable.Ticket) leasetable.Position {
			p := leasetable.Position{Ticket: t.Number, Ahead: ahead, Remaining: time.Hour}
			if entered && t.Number < 0 {
				p.Ticket = 100
			}
			return p
		}
		e := f.push()
		f.draw(t, e)
		ticket, ok := e.BeginAttempt()
		e.EndAttempt("id", ticket, true, false)
		if !ok || ticket != leasetable.NoTicket || !e.Row().Joined() || !e.Row().InOverflow() {
			t.Errorf("an attempt in the overflow list, with ticket %d, %v", ticket, ok)
		}
		looks := func(d time.Duration) int {
			before := f.server.refreshes()
			pass(d)
			return f.server.refreshes() - before
		}
		if n := looks(timing.FirstLook + 10*time.Millisecond); n != 1 {
			t.Errorf("%d first looks", n)
		}
		if n := looks(10 * inLine * timing.LookStep); n < 10 || n > 20 { // each after at least half of that
			t.Errorf("%d looks in the time of ten", n)
		}
		f.server.set(func() { ahead = inLine - 2 })
		if looks(inLine*timing.LookStep) == 0 {
			t.Error("no look")
		}
		if n := looks(4 * inLine * timing.LookStep); n < 4 {
			t.Errorf("%d looks beside a queue that moves", n)
		}
		if len(opened) != 0 || len(e.Woken) != 0 {
			t.Errorf("%d connections listen, it was woken %d times", len(opened), len(e.Woken))
		}
		f.server.set(func() { f.server.down = errRefused })
		pass(inLine * timing.LookStep)
		isWoken(t, e, "it must notice an outage")
		f.server.set(func() { f.server.down, entered = nil, true })
		pass(inLine*timing.LookStep + 2*timing.ListenAfter)
		isWoken(t, e, "it has a ticket, which a release may have missed")
		if ticket, _ := e.BeginAttempt(); ticket != 100 || e.Row().InOverflow() || !f.Listening() {
			t.Errorf("in the queue: ticket %d, in the overflow list: %v, listening: %v", ticket, e.Row().InOverflow(), f.Listening())
		}
		e.EndAttempt("id", leasetable.NoTicket, true, false)
		e.Leave(false)
		f.stop()
	})
}

// TestALineIsLeftWhileItMoves: a refresh in progress turns the place into a ticket, which is deleted too.
func TestALineIsLeftWhileItMoves(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFixture()
		f.server.line = true
		e := f.push()
		f.draw(t, e)
		entry := f.ticket(e)
		f.server.set(func() { f.server.rows["n"] = 100 }) // the answer to the refresh is on its way
		<-e.Leave(false)
		f.looked(entry, leasetable.Position{Ticket: 100}, nil)
		if f.server.row("n") != 0 {
			t.Error("the ticket stays")
		}
		f.stop()
	})
}

// TestLooksOfAWaiter: with a ticket it looks soon, and then as often as the ticket must be refreshed. It
// is woken if the lock is free, and polls from then on for some time if it should have been notified. A
// look that it is told to make is not put off by the next one, nor are the others.
func TestLooksOfAWaiter(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f, opened := listening(true)
		free, ahead := false, 1
		f.server.look = func(t leasetable.Ticket) leasetable.Position {
			return leasetable.Position{Ticket: t.Number, Free: free, Ahead: ahead, Remaining: 5 * time.Second, Overdue: free}
		}
		e := f.push()
		f.draw(t, e)
		pass(timing.FirstLook + 10*time.Millisecond)
		isWoken(t, e, "it listens")
		if n := f.server.refreshes(); n != 1 {
			t.Errorf("%d first looks", n)
		}
		if held := e.Held(); held <= 4*time.Second || held > 5*time.Second {
			t.Errorf("the lock is held for %v", held)
		}
		pass(5*timing.RefreshEvery + timing.SweepEvery)
		if n := f.server.refreshes(); n != 6 || len(e.Woken) != 0 {
			t.Errorf("%d looks, woken %d times", n, len(e.Woken))
		}
		for range 20 { // one release after the other, for longer than a refresh can wait
			f.ReleasedAhead("n")
			pass(timing.HeadGrace / 2)
		}
		if n := f.server.refreshes(); n != 7 {
			t.Errorf("%d looks while the lock is released again and again", n)
		}
		told := time.Now()
		f.ReleasedAhead("n")
		f.server.set(func() { free = true })
		pass(timing.HeadGrace + 2*timing.ExpirySpread)
		isWoken(t, e, "the head is perhaps dead")
		if n := f.server.refreshes(); n != 8 || f.server.refreshed[7].Sub(told) < timing.HeadGrace || !f.Listening() {
			t.Errorf("%d looks, the last one after %v; listening: %v", n, f.server.refreshed[7].Sub(told), f.Listening())
		}
		f.server.set(func() { f.server.down = errRefused })
		before := f.server.refreshes()
		pass(2 * timing.RefreshEvery)
		if n := f.server.refreshes() - before; n < 5 || n > 30 {
			t.Errorf("%d looks in 20 s in which they fail", n)
		}
		f.server.set(func() { f.server.down, ahead = nil, 0 })
		pass(timing.RefreshEvery)
		isWoken(t, e, "the lock is free for it")
		if f.Listening() {
			t.Error("it relies on notifications although one was lost")
		}
		f.server.set(func() { free = false })
		pass(timing.NotifyBackoff)
		if f.Listening() {
			t.Error("it relies on notifications although none has arrived")
		}
		(<-opened).notifications <- "n"
		isWoken(t, e, "it is notified")
		if !f.Listening() {
			t.Error("it polls for ever")
		}
		e.Leave(false)
		f.stop()
	})
}

// TestALineLooksMoreOftenInAQueueThatMoves, so that it is there when the queue has come to it.
func TestALineLooksMoreOftenInAQueueThatMoves(t *testing.T) {
	t.Parallel()
	const behind, perSecond = 400, 20
	for _, moves := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			f := newFixture()
			began := time.Now()
			f.server.line = true
			f.server.look = func(t leasetable.Ticket) leasetable.Position {
				p := leasetable.Position{Ticket: t.Number, Ahead: behind, Remaining: time.Hour}
				if moves {
					p.Ahead -= int(perSecond * time.Since(began).Seconds())
				}
				return p
			}
			e := f.push()
			f.draw(t, e)
			f.mu.Lock()
			e.queue.looks.ahead = behind // the fake's answer is another one
			f.mu.Unlock()
			pass(behind*time.Second/perSecond - 500*time.Millisecond)
			if n := f.server.refreshes(); moves != (n >= 6) {
				t.Errorf("it moves: %v: %d looks", moves, n)
			}
			e.Leave(false)
			f.stop()
		})
	}
}

// TestAShorterGrantWakesTheHead, which would sleep until the end of the longer one before it.
func TestAShorterGrantWakesTheHead(t *testing.T) {
	t.Parallel()
	for _, remaining := range []time.Duration{time.Minute, time.Hour} { // an hour is what the ticket was told
		synctest.Test(t, func(t *testing.T) {
			f := newFixture()
			f.server.look = func(t leasetable.Ticket) leasetable.Position {
				return leasetable.Position{Ticket: t.Number, Remaining: remaining}
			}
			e := f.push()
			f.draw(t, e)
			pass(timing.FirstLook + 10*time.Millisecond)
			if woken := len(e.Woken) > 0; woken != (remaining < time.Hour) {
				t.Errorf("held for another %v: woken: %v", remaining, woken)
			}
			e.Leave(false)
			f.stop()
		})
	}
}

// TestLooksOfOneClientComeTogether, also if its tickets were drawn two seconds apart.
func TestLooksOfOneClientComeTogether(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFixture()
		one := f.push()
		f.draw(t, one)
		pass(2 * time.Second)
		two := f.Push(&leasetable.Request{Name: "m"}, time.Now())
		f.draw(t, two)
		pass(5 * timing.RefreshEvery)
		if n := f.server.refreshes(); n < 6 || n > 8 {
			t.Errorf("%d statements for two tickets in 50 s", n)
		}
		one.Leave(false)
		two.Leave(false)
		f.stop()
	})
}

// TestATicketThatIsDueFirst is looked at in time, although the refresher sleeps until another one is due. A
// client that is granted a lock again and again does not wake it.
func TestATicketThatIsDueFirst(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFixture()
		one := f.push()
		f.draw(t, one)
		pass(timing.RefreshEvery)
		f.mu.Lock()
		sleepsUntil := f.looksAt
		f.mu.Unlock()
		ticket, _ := one.BeginAttempt()
		one.EndAttempt(one.Request().ID, ticket, true, true)
		one.Leave(true)
		one = f.push()
		f.draw(t, one)
		synctest.Wait()
		f.mu.Lock()
		if f.looksAt != sleepsUntil {
			t.Error("a ticket that is due later wakes the refresher")
		}
		f.mu.Unlock()
		f.server.set(func() { f.server.line, f.server.ahead = true, 1 })
		for i := range 10 {
			pass(100 * time.Millisecond * time.Duration(i))
			before := f.server.refreshes()
			two := f.Push(&leasetable.Request{Name: strconv.Itoa(i)}, time.Now())
			f.draw(t, two)
			pass(timing.LookStep + time.Millisecond)
			if f.server.refreshes() == before {
				t.Errorf("no look at ticket %d when it was due", i)
			}
			two.Leave(false)
		}
		one.Leave(false)
		f.stop()
	})
}

// TestAPlaceThatBecomesATicketWakesTheHead, because a release may have missed the new ticket.
func TestAPlaceThatBecomesATicketWakesTheHead(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFixture()
		f.server.line = true
		e := f.push()
		if _, err := e.DrawTicket(t.Context()); err != nil {
			t.Fatal(err)
		}
		pass(timing.RefreshEvery)
		if len(e.Woken) != 0 {
			t.Error("control: it is woken in line")
		}
		f.server.set(func() {
			f.server.look = func(leasetable.Ticket) leasetable.Position {
				return leasetable.Position{Ticket: 99, Ahead: 3, Remaining: time.Hour}
			}
		})
		pass(timing.RefreshEvery + timing.SweepEvery)
		if len(e.Woken) != 1 || e.Row().Ticket() != 99 {
			t.Errorf("woken %d, ticket %d", len(e.Woken), e.Row().Ticket())
		}
		e.Leave(false)
		f.stop()
	})
}

// TestABusyAnswerSaysUntilWhen: the head sleeps until the grant in the way expires.
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
