package waitlist

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pglock/pglock-go/internal/timing"
)

// subscription is a fake of a listening connection. Closing the channel ends it.
type subscription struct {
	notifications chan string
	pings         atomic.Int32
	silent        atomic.Bool // a ping fails
}

func (s *subscription) Wait(ctx context.Context) (string, error) {
	select {
	case name, ok := <-s.notifications:
		if !ok {
			return "", errors.New("the connection was closed")
		}
		return name, nil
	case <-ctx.Done():
		return "", ctx.Err()
	}
}

func (s *subscription) Ping(context.Context) error {
	s.pings.Add(1)
	if s.silent.Load() {
		return errors.New("no answer")
	}
	return nil
}

func (*subscription) Close(context.Context) error { return nil }

// listening returns a fixture whose listener gets a new subscription each time. Notify reaches it
// if deliver is set.
func listening(deliver bool) (f fixture, opened chan *subscription) {
	opened = make(chan *subscription, 100)
	f = newFixture()
	f.cfg.Listen = func(context.Context, string) (Subscription, error) {
		s := &subscription{notifications: make(chan string, 10)}
		if deliver {
			s.notifications <- "" // what selfTest is to receive, twice
			s.notifications <- ""
		}
		opened <- s
		return s, nil
	}
	return f, opened
}

// isWoken takes the wake-up of the entry. Without one it fails, since the listener never stops
// trying.
func isWoken(t *testing.T, e *Entry, why string) {
	t.Helper()
	select { // the wake-up is there at once
	case <-e.Woken:
	case <-time.After(time.Second):
		t.Fatalf("the head is not woken: %s", why)
	}
}

// TestAListenerFirstHearsItself: only then it counts. A notification wakes the head of its queue. A
// silent connection is pinged, and replaced when that fails; all heads are woken then.
func TestAListenerFirstHearsItself(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f, opened := listening(true)
		e := f.push()
		if _, err := e.DrawTicket(t.Context()); err != nil {
			t.Fatal(err)
		}
		pass(2 * timing.ListenAfter)
		synctest.Wait()
		first := <-opened
		if !f.Listening() {
			t.Error("it does not listen")
		}
		isWoken(t, e, "there is a new connection")
		first.notifications <- "other"
		first.notifications <- "n"
		<-e.Woken
		pass(5 * timing.PingEvery)
		if first.pings.Load() < 4 || len(e.Woken) != 0 {
			t.Errorf("%d pings in a silence of 50 s, woken %d times", first.pings.Load(), len(e.Woken))
		}
		first.silent.Store(true)
		pass(timing.PingEvery)
		<-e.Woken
		<-opened
		pass(timing.MaxReconnect)
		if !f.Listening() {
			t.Error("it does not listen again")
		}
		e.Leave(false)
		f.stop()
	})
}

// TestAListenerWithoutDelivery: LISTEN succeeds, and nothing arrives. Waiters poll, and the
// listener tries again after a long pause.
func TestAListenerWithoutDelivery(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f, opened := listening(false)
		e := f.push()
		if _, err := e.DrawTicket(t.Context()); err != nil {
			t.Fatal(err)
		}
		pass(2 * timing.ListenAfter)
		began := time.Now()
		for range 4 {
			<-opened
			if f.Listening() {
				t.Error("it listens")
			}
		}
		if took := time.Since(began); took < 3*timing.NoDeliveryPause/2 {
			t.Errorf("four connections in %v", took)
		}
		e.Leave(false)
		f.stop()
	})
}

// TestAnOutageIsLoggedOnce: the listener warns when its connection fails, and not for each attempt
// to get a new one.
func TestAnOutageIsLoggedOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f, opened := listening(true)
		var log strings.Builder
		f.cfg.Logger = slog.New(slog.NewTextHandler(&log, nil))
		connect, away := f.cfg.Listen, atomic.Bool{}
		attempts := 0
		f.cfg.Listen = func(ctx context.Context, channel string) (Subscription, error) {
			if attempts++; away.Load() {
				return nil, errors.New("connection refused")
			}
			return connect(ctx, channel)
		}
		e := f.push()
		if _, err := e.DrawTicket(t.Context()); err != nil {
			t.Fatal(err)
		}
		pass(2 * timing.ListenAfter)
		for outages := range 3 {
			synctest.Wait()
			away.Store(true)
			isWoken(t, e, "there is a new connection")
			close((<-opened).notifications)
			isWoken(t, e, "it must poll from now on")
			pass(time.Minute)
			away.Store(false)
			pass(2 * timing.MaxReconnect)
			if n := strings.Count(log.String(), "WARN"); n != outages+1 || attempts < 10*n || !f.Listening() {
				t.Errorf("%d attempts, listening: %v, log: %s", attempts, f.Listening(), log.String())
			}
		}
		e.Leave(false)
		f.stop()
	})
}

// TestAListenerClosesWhenNothingNeedsIt: not while there is a waiter or something else to hear, and
// a while after that. The next waiter opens it again, also one that comes while it closes.
func TestAListenerClosesWhenNothingNeedsIt(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f, opened := listening(true)
		watched := atomic.Bool{}
		f.cfg.Needed = watched.Load
		wait := func() *Entry {
			e := f.push()
			if _, err := e.DrawTicket(t.Context()); err != nil {
				t.Fatal(err)
			}
			pass(2 * timing.ListenAfter)
			return e
		}
		isOpen := func(want bool, when string) {
			t.Helper()
			if f.Listening() != want {
				t.Errorf("%s: it listens: %v", when, !want)
			}
		}
		e := wait()
		pass(10 * timing.ListenerIdle)
		isOpen(true, "a waiter")
		watched.Store(true)
		e.Leave(false)
		pass(10 * timing.ListenerIdle)
		isOpen(true, "a watcher")
		watched.Store(false)
		only := <-opened
		for range 10 {
			only.notifications <- "n" // for one that waits for a moment only
			pass(timing.ListenerIdle / 3)
		}
		isOpen(true, "notifications")
		pass(timing.ListenerIdle / 6)
		e = wait()
		pass(timing.ListenerIdle)
		isOpen(true, "a waiter has come in time")
		e.Leave(false)
		pass(timing.ListenerIdle / 2)
		isOpen(true, "soon after the last waiter")
		if len(opened) != 0 {
			t.Errorf("%d connections more were opened", len(opened))
		}
		pass(timing.ListenerIdle + timing.PingEvery)
		isOpen(false, "long after the last waiter")
		e = wait()
		isOpen(true, "the next waiter")
		if len(opened) != 1 {
			t.Errorf("%d connections more were opened", len(opened))
		}
		e.Leave(false)
		f.stop()
	})
}

// TestManyShortWaitsOpenAListener, and one does not: a name that is passed on all the time needs
// notifications, although no wait is long.
func TestManyShortWaitsOpenAListener(t *testing.T) {
	t.Parallel()
	for _, waits := range []int{1, 20} {
		synctest.Test(t, func(t *testing.T) {
			f, opened := listening(true)
			for range waits {
				e := f.push()
				f.draw(t, e)
				ticket, _ := e.BeginAttempt()
				pass(timing.ListenAfter / 10)
				e.EndAttempt("id", ticket, true, true)
				e.Leave(true)
			}
			if want := waits > 1; f.Listening() != want || len(opened) > 0 != want {
				t.Errorf("after %d waits, it listens: %v, %d connections", waits, f.Listening(), len(opened))
			}
			f.stop()
		})
	}
}
