package waitlist

import (
	"maps"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pglock/pglock-go/internal/timing"
	"github.com/pglock/pglock-go/leasetable"
)

// TestTimesOfLooks holds the table of looks: how long the next look is away in each state.
func TestTimesOfLooks(t *testing.T) {
	t.Parallel()
	const grace, second = timing.HeadGrace + timing.ExpirySpread, time.Second
	queued, overflow := Row{rowQueued, 1}, Row{rowOverflow, 2}
	began := time.Now()
	at := func(d time.Duration) time.Time { return began.Add(d) }
	for name, tc := range map[string]struct {
		do          func(k *looks) // until at(second)
		least, most time.Duration  // after at(second)
	}{
		"queued, just drawn":      {func(k *looks) { k.drawn(queued, 3, at(second)) }, timing.FirstLook, timing.FirstLook},
		"overflow, just drawn":    {func(k *looks) { k.drawn(overflow, 20, at(second)) }, timing.FirstLook, timing.FirstLook},
		"overflow, the first one": {func(k *looks) { k.drawn(overflow, 1, at(second)) }, timing.LookStep / 2, timing.LookStep},
		"overflow, a free queue":  {func(k *looks) { k.drawn(overflow, 0, at(second)) }, timing.LeastLook, timing.LeastLook},
		"overflow, drawn again":   {func(k *looks) { k.drawn(overflow, 1000, at(0)); k.drawn(overflow, 2, at(second)) }, timing.LookStep, 2 * timing.LookStep},
		"queued, seen":            {func(k *looks) { k.drawn(queued, 3, at(0)); k.seen(queued, 3, at(second)) }, timing.RefreshEvery, timing.RefreshEvery},
		"overflow, seen":          {func(k *looks) { k.drawn(overflow, 20, at(0)); k.seen(overflow, 20, at(second)) }, 10 * timing.LookStep, 20 * timing.LookStep},
		"overflow, far behind":    {func(k *looks) { k.drawn(overflow, 400, at(0)); k.seen(overflow, 400, at(second)) }, timing.RefreshEvery / 2, timing.RefreshEvery},
		"overflow, the queue moves": {func(k *looks) {
			k.drawn(overflow, 400, at(0))
			k.seen(overflow, 300, at(second)) // so it comes within three seconds
		}, 3 * second / 4, 3 * second / 2},
		"overflow, the queue has moved": {func(k *looks) {
			k.drawn(overflow, 400, at(0))
			k.seen(overflow, 300, at(second/2))
			k.seen(overflow, 300, at(second))
		}, timing.RefreshEvery / 2, timing.RefreshEvery},
		"silent": {func(k *looks) { k.drawn(queued, 3, at(0)); k.begun(at(second)) }, timing.SweepEvery / 2, 3 * timing.SweepEvery / 2},
		"released ahead": {func(k *looks) {
			k.seen(queued, 3, at(second))
			k.headAt = at(second + grace)
		}, grace, grace},
		"released ahead, a look before that": {func(k *looks) {
			k.headAt = at(second + grace)
			k.begun(at(second))
			k.seen(queued, 3, at(second))
		}, grace, grace},
		"released ahead, looked": {func(k *looks) {
			k.headAt = at(second)
			k.begun(at(second))
			k.seen(queued, 3, at(second))
		}, timing.RefreshEvery, timing.RefreshEvery},
	} {
		for range 20 { // most times are at random
			var k looks
			tc.do(&k)
			if d := k.due().Sub(at(second)); d < tc.least || d > tc.most {
				t.Errorf("%s: the next look is after %v, want %v to %v", name, d, tc.least, tc.most)
			}
		}
	}
	var k looks
	for i, want := range []time.Time{at(timing.ListenAfter), at(timing.ListenAfter), {}, at(3*second + timing.ListenAfter)} {
		k.drawn([]Row{queued, queued, overflow, queued}[i], 3, at(time.Duration(i)*second))
		if !k.listenAt.Equal(want) {
			t.Errorf("ticket %d: the listener is needed %v after the first ticket", i, k.listenAt.Sub(began))
		}
	}
	q := &queue{row: queued, looks: k} // the refresher opens the listener in time, and then looks
	for now, want := range map[time.Time]time.Time{at(3 * second): k.listenAt, k.listenAt: k.at} {
		if next := q.next(now, at(time.Hour)); !next.Equal(want) {
			t.Errorf("next after %v, want %v", next.Sub(now), want.Sub(now))
		}
	}
}

// TestWhatALookFinds holds the second table of looks.
func TestWhatALookFinds(t *testing.T) {
	t.Parallel()
	const queued, overflow = false, true
	for name, tc := range map[string]struct {
		drawn       bool // into the overflow list
		found       leasetable.Position
		err         error
		woken, lost bool
		row         Row
	}{
		"held":              {queued, leasetable.Position{State: leasetable.Queued, Ticket: 1, Remaining: time.Hour}, nil, false, false, Row{rowQueued, 1}},
		"a little earlier":  {queued, leasetable.Position{State: leasetable.Queued, Ticket: 1, Remaining: time.Hour - timing.SweepEvery/2}, nil, false, false, Row{rowQueued, 1}},
		"much earlier":      {queued, leasetable.Position{State: leasetable.Queued, Ticket: 1, Remaining: time.Minute}, nil, true, false, Row{rowQueued, 1}},
		"free":              {queued, leasetable.Position{State: leasetable.Queued, Ticket: 1, Free: true}, nil, true, false, Row{rowQueued, 1}},
		"overdue":           {queued, leasetable.Position{State: leasetable.Queued, Ticket: 1, Free: true, Overdue: true}, nil, true, true, Row{rowQueued, 1}},
		"overdue, behind":   {queued, leasetable.Position{State: leasetable.Queued, Ticket: 1, Free: true, Overdue: true, Ahead: 1}, nil, true, false, Row{rowQueued, 1}},
		"no ticket":         {queued, leasetable.Position{}, nil, true, false, Row{rowStale, 1}},
		"an error":          {queued, leasetable.Position{}, errRefused, false, false, Row{rowQueued, 1}},
		"overflow":          {overflow, leasetable.Position{State: leasetable.InOverflow, Ticket: 1, Free: true, Overdue: true}, nil, false, false, Row{rowOverflow, 1}},
		"overflow, ticket":  {overflow, leasetable.Position{State: leasetable.Queued, Ticket: 9, Free: true, Overdue: true}, nil, true, false, Row{rowQueued, 9}},
		"overflow, removed": {overflow, leasetable.Position{}, nil, true, false, Row{rowStale, 1}},
		"overflow, error":   {overflow, leasetable.Position{}, errRefused, true, false, Row{rowOverflow, 1}},
	} {
		synctest.Test(t, func(t *testing.T) {
			f := newFixture()
			f.server.overflow = tc.drawn
			e := f.push()
			f.draw(t, e)
			lost := f.looked(f.ticket(e), tc.found, tc.err)
			if woken := len(e.Woken) > 0; woken != tc.woken || lost != tc.lost || e.Row() != tc.row {
				t.Errorf("%s: woken: %v, lost: %v, %+v", name, woken, lost, e.Row())
			}
			f.ReleasedAhead("n")
			f.mu.Lock()
			listens := time.Until(e.queue.looks.listenAt) == timing.ListenAfter
			if !e.queue.looks.headAt.IsZero() != (tc.row.state == rowQueued) || listens != (tc.drawn == queued || tc.row.state == rowQueued) {
				t.Errorf("%s: %+v", name, e.queue.looks)
			}
			f.mu.Unlock()
			e.Leave(false)
			f.stop()
		})
	}
}

// TestWhichRowsAreCollected: with a ticket that is due, those that are due soon, unless they are in
// the overflow list; and a row that has been idle for long enough. Without any row the refresher
// waits for the next ticket.
func TestWhichRowsAreCollected(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFixture()
		now, soon := time.Now(), time.Now().Add(timing.RefreshEvery/4)
		f.mu.Lock()
		for name, at := range map[string]time.Time{"due": now, "soon": soon.Add(-1), "later": soon, "overflow": soon.Add(-1)} {
			q := f.queueFor(&leasetable.Request{Name: name})
			q.row, q.looks.at = Row{rowQueued, 1}, at
			if name == "overflow" {
				q.row = Row{rowOverflow, 1}
			}
		}
		f.mu.Unlock()
		due, _, _ := f.collect(now)
		names := map[string]bool{}
		for _, ticket := range due {
			names[ticket.Names[0]] = true
		}
		if !maps.Equal(names, map[string]bool{"due": true, "soon": true}) {
			t.Errorf("collected %v", names)
		}
		f.mu.Lock()
		clear(f.queues)
		f.queueFor(&leasetable.Request{Name: "idle"}).row = Row{rowStale, 7}
		f.queues["idle"].emptySince, f.looksAt = now, now
		f.mu.Unlock()
		if _, idle, rows := f.collect(now.Add(timing.IdleRowTTL)); len(idle) != 0 || !rows || f.looksAt.IsZero() {
			t.Errorf("too early: %+v", idle)
		}
		if _, idle, rows := f.collect(now.Add(timing.IdleRowTTL + 1)); len(idle) != 1 || idle[0].Number != 7 || rows || !f.looksAt.IsZero() {
			t.Errorf("idle: %+v, rows: %v, until %v", idle, rows, f.looksAt)
		}
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

// TestAnEntryOfTheOverflowList: a waiter far behind the head needs no listening connection, and
// makes no attempt with a ticket. It looks now and then, more often in a queue that moves, until it
// gets a ticket.
func TestAnEntryOfTheOverflowList(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f, opened := listening(true)
		ahead, entered := before, false
		f.server.overflow = true
		f.server.look = func(t leasetable.Ticket) leasetable.Position {
			p := leasetable.Position{State: t.State, Ticket: t.Number, Ahead: ahead, Remaining: time.Hour}
			if entered && t.State == leasetable.InOverflow {
				p.State, p.Ticket = leasetable.Queued, 100
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
		if n := looks(10 * before * timing.LookStep); n < 10 || n > 20 { // each after at least half of that
			t.Errorf("%d looks in the time of ten", n)
		}
		f.server.set(func() { ahead = before - 2 })
		if looks(before*timing.LookStep) == 0 {
			t.Error("no look")
		}
		if n := looks(4 * before * timing.LookStep); n < 4 {
			t.Errorf("%d looks beside a queue that moves", n)
		}
		if len(opened) != 0 || len(e.Woken) != 0 {
			t.Errorf("%d connections listen, it was woken %d times", len(opened), len(e.Woken))
		}
		f.server.set(func() { f.server.down = errRefused })
		pass(before * timing.LookStep)
		isWoken(t, e, "it must notice an outage")
		f.server.set(func() { f.server.down, entered = nil, true })
		pass(before*timing.LookStep + 2*timing.ListenAfter)
		isWoken(t, e, "it has a ticket, which a release may have missed")
		if ticket, _ := e.BeginAttempt(); ticket != 100 || e.Row().InOverflow() || !f.Listening() {
			t.Errorf("in the queue: ticket %d, in the overflow list: %v, listening: %v", ticket, e.Row().InOverflow(), f.Listening())
		}
		e.EndAttempt("id", leasetable.NoTicket, true, false)
		e.Leave(false)
		f.stop()
	})
}

// TestLooksOfAWaiter: with a ticket it looks soon, and then as often as the ticket must be
// refreshed. It is woken if the lock is free, and polls from then on for some time if it should
// have been notified. A look for a dead head is not put off by the next one, nor are the others.
func TestLooksOfAWaiter(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f, opened := listening(true)
		free, ahead := false, 1
		f.server.look = func(t leasetable.Ticket) leasetable.Position {
			return leasetable.Position{State: t.State, Ticket: t.Number, Free: free, Ahead: ahead, Remaining: 5 * time.Second, Overdue: free}
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
		released := time.Now()
		f.ReleasedAhead("n")
		f.server.set(func() { free = true })
		pass(timing.HeadGrace + 2*timing.ExpirySpread)
		isWoken(t, e, "the head is perhaps dead")
		if n := f.server.refreshes(); n != 8 || f.server.refreshed[7].Sub(released) < timing.HeadGrace || !f.Listening() {
			t.Errorf("%d looks, the last one after %v; listening: %v", n, f.server.refreshed[7].Sub(released), f.Listening())
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

// TestTheOverflowListLooksMoreOftenIfTheQueueMoves, so that its first entry joins in time.
func TestTheOverflowListLooksMoreOftenIfTheQueueMoves(t *testing.T) {
	t.Parallel()
	const behind, perSecond = 400, 20
	for _, moves := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			f := newFixture()
			began := time.Now()
			f.server.overflow = true
			f.server.look = func(t leasetable.Ticket) leasetable.Position {
				p := leasetable.Position{State: t.State, Ticket: t.Number, Ahead: behind, Remaining: time.Hour}
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
	for _, remaining := range []time.Duration{time.Minute, time.Hour} { // an hour is what Join has answered
		synctest.Test(t, func(t *testing.T) {
			f := newFixture()
			f.server.look = func(t leasetable.Ticket) leasetable.Position {
				return leasetable.Position{State: t.State, Ticket: t.Number, Remaining: remaining}
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

// TestATicketThatIsDueFirst is looked at in time, although the refresher sleeps until another one
// is due. A client that is granted a lock again and again does not wake it.
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
		f.server.set(func() { f.server.overflow, f.server.ahead = true, 1 })
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

// TestAnOverflowEntryThatGetsATicketWakesTheHead, because a release may have missed the new ticket.
func TestAnOverflowEntryThatGetsATicketWakesTheHead(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFixture()
		f.server.overflow = true
		e := f.push()
		if _, err := e.DrawTicket(t.Context()); err != nil {
			t.Fatal(err)
		}
		pass(timing.RefreshEvery)
		if len(e.Woken) != 0 {
			t.Error("control: it is woken in the overflow list")
		}
		f.server.set(func() {
			f.server.look = func(leasetable.Ticket) leasetable.Position {
				return leasetable.Position{State: leasetable.Queued, Ticket: 99, Ahead: 3, Remaining: time.Hour}
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
