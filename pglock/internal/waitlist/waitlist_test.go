package waitlist

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pglock/pglock-go/internal/timing"
	"github.com/pglock/pglock-go/leasetable"
)

// model runs a sequence of steps on the Queues, and checks after each what must always hold.
type model struct {
	fixture
	t       *testing.T
	steps   []string
	entries []*Entry // in the order of arrival
	pending *Entry   // reserved, or nil
	handed  *Entry   // has the result of a hand-off, or nil
	trying  *Entry   // makes an attempt, or nil
	ticket  int64    // of that attempt
	lost    bool     // the server has lost a row that the list may know
}

// step is one transition. It returns false if it is not possible in the state of the model.
type step struct {
	name string
	do   func(m *model) bool
}

// withHead runs fn on the head, if there is one.
func withHead(fn func(m *model, head *Entry) bool) func(m *model) bool {
	return func(m *model) bool { return len(m.entries) > 0 && fn(m, m.entries[0]) }
}

// draw draws a ticket for the head, which gives up as soon as the statement is in progress.
func draw(fail error) func(m *model) bool {
	return withHead(func(m *model, head *Entry) bool {
		if m.trying == head {
			return false
		}
		m.server.mu.Lock()
		m.server.failJoin = fail
		m.server.mu.Unlock()
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan struct{})
		go func() {
			defer close(done)
			_, _ = head.DrawTicket(ctx)
		}()
		m.AwaitRemoval(ctx, "n") // as DrawTicket does
		synctest.Wait()
		cancel()
		<-done
		return true
	})
}

// begin begins an attempt of the head.
func begin() func(m *model) bool {
	return withHead(func(m *model, head *Entry) bool {
		ticket, ok := head.BeginAttempt()
		if want := m.trying != head && m.pending != head && m.handed != head; ok != want {
			m.fail("an attempt may begin: %v, want %v", ok, want)
		}
		if ok {
			m.trying, m.ticket = head, ticket
		}
		return ok
	})
}

// end ends the attempt, in which the server answered.
func end(usedUp bool) func(m *model) bool {
	return func(m *model) bool {
		e := m.trying
		if e == nil {
			return false
		}
		m.trying = nil
		before := m.validTicket(e)
		e.EndAttempt(e.Request().ID, m.ticket, true, usedUp)
		want := before
		if usedUp && m.ticket == before { // without a ticket nothing changes
			want = leasetable.NoTicket
		}
		if got := m.validTicket(e); got != want {
			m.fail("ticket %d, want %d", got, want)
		}
		return true
	}
}

// leave removes the entry at that place.
func leave(at func(n int) int, granted bool) func(m *model) bool {
	return withHead(func(m *model, _ *Entry) bool {
		i := at(len(m.entries))
		if granted && i > 0 || m.trying == m.entries[i] {
			return false
		}
		m.entries[i].Leave(granted)
		m.entries = slices.Delete(m.entries, i, i+1)
		return true
	})
}

func first(int) int  { return 0 }
func last(n int) int { return n - 1 }

var steps = []step{
	{"push", func(m *model) bool {
		m.entries = append(m.entries, m.push())
		return len(m.entries) <= 2
	}},
	{"draw", draw(nil)},
	{"draw, refused", draw(errRefused)},
	{"draw, answer lost", draw(errLost)},
	{"an attempt begins", begin()},
	{"the attempt ends", end(false)},
	{"the attempt ends, ticket used", end(true)},
	{"leave", leave(first, false)},
	{"leave, granted", leave(first, true)},
	{"last leaves", leave(last, false)},
	{"reserve", func(m *model) bool {
		e := m.Reserve("n")
		if e != nil && (len(m.entries) == 0 || e != m.entries[0] || m.pending == e || m.handed == e) {
			m.fail("reserved another entry than the head, or twice")
		}
		if e != nil {
			m.pending = e
		}
		return e != nil
	}},
	{"deliver", func(m *model) bool {
		e := m.pending
		if e == nil {
			return false
		}
		m.pending = nil
		if got := e.Deliver(Answer{}); got != slices.Contains(m.entries, e) {
			m.fail("delivered: %v", got)
		} else if got {
			m.handed = e
		}
		return true
	}},
	{"the result is taken", func(m *model) bool {
		e := m.handed
		if e == nil || !slices.Contains(m.entries, e) {
			return false
		}
		m.handed = nil
		<-e.Handed
		e.EndHandoff("another")
		return true
	}},
	{"cancel the hand-off", func(m *model) bool {
		if m.pending == nil {
			return false
		}
		m.pending.CancelHandoff()
		m.pending = nil
		return true
	}},
	{"notification", func(m *model) bool { m.listener.notified("n"); return true }},
	{"the row is lost", func(m *model) bool {
		m.server.loseRows()
		m.lost = true
		return true
	}},
	{"a moment", func(*model) bool { pass(2 * time.Millisecond); return true }},
	{"a round of the refresher", func(*model) bool { pass(timing.RefreshEvery + timing.SweepEvery); return true }},
}

func (m *model) validTicket(e *Entry) int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return e.queue.row.Ticket()
}

func (m *model) fail(format string, args ...any) {
	m.t.Helper()
	m.t.Fatalf("%s: %s", strings.Join(m.steps, ", "), fmt.Sprintf(format, args...))
}

// check checks what always holds.
func (m *model) check() {
	m.t.Helper()
	synctest.Wait()
	for i, e := range m.entries {
		select {
		case <-e.Head:
			if i > 0 {
				m.fail("entry %d is a head", i)
			}
		default:
			if i == 0 {
				m.fail("the first entry is no head")
			}
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	q, deleting := m.queues["n"], m.removals["n"] != nil
	row := m.server.row("n")
	switch {
	case q == nil && len(m.entries) > 0:
		m.fail("there are entries, and no queue")
	case q == nil:
		if row != 0 && !deleting {
			m.fail("ticket %d is in the queue, and nothing deletes it", row)
		}
	case q.entries.Len() != len(m.entries):
		m.fail("%d entries, want %d", q.entries.Len(), len(m.entries))
	case q.row.state == rowNone && q.row.ticket != 0:
		m.fail("there is no row, and it has ticket %d", q.row.ticket)
	case row != 0 && q.row.ticket != row && q.row.state != rowUnknown && q.join == nil && !deleting:
		m.fail("the row has ticket %d, the list knows %+v", row, q.row)
	case q.row.Joined() && row != q.row.ticket && q.join == nil && !m.lost:
		m.fail("the list believes in %+v, the row has ticket %d", q.row, row)
	case len(m.entries) == 0 && q.row.Joined() && q.join == nil:
		m.fail("%+v is valid, and no call waits", q.row)
	}
}

// finish lets all entries leave, and checks that nothing stays.
func (m *model) finish() {
	m.t.Helper()
	m.steps = append(m.steps, "all leave")
	end(false)(m)
	pass(4 * time.Millisecond) // what is in progress ends
	m.check()
	for len(m.entries) > 0 {
		leave(last, false)(m)
		m.check()
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	m.AwaitRemoval(ctx, "n")
	if ctx.Err() != nil {
		m.fail("the removal of tickets did not end")
	}
	pass(timing.IdleRowTTL + 2*timing.SweepEvery + time.Second)
	if row := m.server.row("n"); row != 0 || len(m.queues) > 0 {
		m.fail("afterwards: row %d, %d queues", row, len(m.queues))
	}
	m.stop()
}

// TestEverySequenceOfTransitions runs all sequences of a few transitions. In all
// of them the order is kept, one side at a time uses a request, and no ticket stays behind.
func TestEverySequenceOfTransitions(t *testing.T) {
	t.Parallel()
	depth := 4
	if testing.Short() {
		depth = 3
	}
	synctest.Test(t, func(t *testing.T) {
		n := 0
		var extend func(prefix []step)
		extend = func(prefix []step) {
			m := &model{fixture: newFixture(), t: t}
			m.entries = append(m.entries, m.push())
			for i, s := range prefix {
				m.steps = append(m.steps, s.name)
				possible := s.do(m)
				m.check()
				if !possible && i == len(prefix)-1 {
					m.finish()
					return // longer sequences say nothing new
				}
			}
			m.finish()
			n++
			if len(prefix) == depth {
				return
			}
			for _, s := range steps {
				extend(append(slices.Clone(prefix), s))
			}
		}
		extend(nil)
		t.Logf("%d sequences", n)
	})
}

// TestTheTicketIsShared: all entries of a queue wait with one ticket, which survives its head.
func TestTheTicketIsShared(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFixture()
		first, second := f.push(), f.push()
		p, err := first.DrawTicket(t.Context())
		if err != nil || f.server.row("n") != p.Ticket {
			t.Fatalf("%+v, %v", p, err)
		}
		if gone := first.Leave(false); gone != nil {
			t.Error("the ticket is deleted while another entry waits")
		}
		if row := second.Row(); !row.Joined() || second.AfterGrant {
			t.Errorf("the next head finds %+v, after a grant: %v", row, second.AfterGrant)
		}
		if gone := second.Leave(false); gone == nil {
			t.Error("the ticket stays when no caller waits")
		} else {
			<-gone
		}
		if row := f.server.row("n"); row != 0 {
			t.Errorf("ticket %d stays", row)
		}
		f.stop()
	})
}

// TestACallerThatLeavesWhileItsTicketIsDrawn: the ticket is deleted as soon as it is known, also
// when the server refuses that at first. Until then the next caller waits.
func TestACallerThatLeavesWhileItsTicketIsDrawn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFixture()
		f.server.failLeave = 3
		e := f.push()
		ctx, cancel := context.WithTimeout(t.Context(), time.Microsecond) // the statement takes longer
		defer cancel()
		if _, err := e.DrawTicket(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("DrawTicket: %v", err)
		}
		gone := e.Leave(false)
		if gone == nil {
			t.Fatal("nothing is deleted")
		}
		f.AwaitRemoval(t.Context(), "n")
		select {
		case <-gone:
		default:
			t.Error("the next caller did not wait")
		}
		if row := f.server.row("n"); row != 0 || f.server.drawn != 1 {
			t.Errorf("row %d, %d tickets drawn", row, f.server.drawn)
		}
		f.stop()
	})
}

// TestALostTicketIsNoticed: a refresh does not find it. The head is woken, to draw another.
func TestALostTicketIsNoticed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFixture()
		e := f.push()
		if _, err := e.DrawTicket(t.Context()); err != nil {
			t.Fatal(err)
		}
		pass(timing.TicketTTL)
		if len(e.Woken) != 0 || !e.Row().Joined() || f.server.refreshes() == 0 {
			t.Errorf("woken %d, refreshed %d times", len(e.Woken), f.server.refreshes())
		}
		f.server.loseRows()
		pass(timing.RefreshEvery + timing.SweepEvery)
		if len(e.Woken) != 1 || e.Row().Joined() {
			t.Errorf("a lost ticket: woken %d, it still counts: %v", len(e.Woken), e.Row().Joined())
		}
		e.Leave(false)
		f.stop()
	})
}

// TestAHandoffYieldsForAWhile: after other processes were found to wait, nothing is handed off.
func TestAHandoffYieldsForAWhile(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFixture()
		e := f.push()
		f.Reserve("n").CancelHandoff()
		if f.Reserve("n") != nil {
			t.Error("reserved at once")
		}
		pass(timing.HandoffPause)
		if f.Reserve("n") != e {
			t.Error("not reserved later")
		}
		e.Leave(false)
		f.stop()
	})
}

// TestACallerThatLeavesAClosingClient leaves its ticket to Stop, which deletes all of them with one statement.
func TestACallerThatLeavesAClosingClient(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFixture()
		closing := make(chan struct{})
		f.cfg.Closing = closing
		e := f.push()
		f.draw(t, e)
		close(closing)
		gone := e.Leave(false)
		f.client.calls.Wait()
		select {
		case <-gone:
		default:
			t.Error("the next caller would wait")
		}
		if f.server.together != 0 {
			t.Error("it deletes its ticket")
		}
		f.stop()
		if row := f.server.row("n"); row != 0 {
			t.Errorf("row %d is left", row)
		}
	})
}

// TestAnOutageIsTold: entries behind the head learn of it when they have waited for long enough.
func TestAnOutageIsTold(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFixture()
		head, early := f.push(), f.push()
		began := time.Now()
		head.Fail(errRefused)
		pass(timing.OutagePatience)
		late := f.push()
		pass(time.Second)
		if since := head.Fail(errRefused); !since.Equal(began) {
			t.Errorf("failing since %v, want %v", since, began)
		}
		if len(early.Outage) != 1 || len(late.Outage) != 0 || len(head.Outage) != 0 {
			t.Errorf("told: %d, %d, %d", len(head.Outage), len(early.Outage), len(late.Outage))
		}
		if since := late.Fail(errRefused); !since.Equal(late.began) {
			t.Errorf("a later caller: failing since %v, want %v", since, late.began)
		}
		ticket, _ := head.BeginAttempt()
		head.EndAttempt(head.Request().ID, ticket, true, false)
		if since := head.Fail(errRefused); !since.Equal(time.Now()) {
			t.Errorf("after an answer: failing since %v", since)
		}
		pass(time.Second)
		f.draw(t, head)
		if since := head.Fail(errRefused); !since.Equal(time.Now()) {
			t.Errorf("after a ticket: failing since %v", since)
		}
		for _, e := range []*Entry{late, early, head} {
			e.Leave(false)
		}
		f.stop()
	})
}
