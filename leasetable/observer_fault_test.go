package leasetable_test

import (
	"context"
	"log/slog"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/leasetable"
)

// each is an Observer that calls a function for every event.
type each struct {
	leasetable.NopObserver
	do func()
}

func (o each) ObserveWait(context.Context, leasetable.WaitEvent)       { o.do() }
func (o each) ObserveAcquire(context.Context, leasetable.AcquireEvent) { o.do() }
func (o each) ObserveHandoff(context.Context, leasetable.HandoffEvent) { o.do() }
func (o each) ObserveRenewal(context.Context, leasetable.RenewalEvent) { o.do() }
func (o each) ObserveLoss(context.Context, leasetable.LossEvent)       { o.do() }
func (o each) ObserveRelease(context.Context, leasetable.ReleaseEvent) { o.do() }
func (o each) ObserveBatch(context.Context, leasetable.BatchEvent)     { o.do() }

// TestI9_AnObserverThatPanics changes nothing: calls, hand-offs, renewals, losses and other
// observers go on, Close returns, and nothing is left. The first panic is logged.
func TestI9_AnObserverThatPanics(t *testing.T) {
	t.Parallel()
	f, r := newFixture(t), &recorder{}
	var logged logBuffer
	var panics atomic.Int64
	c := f.open(logged.option(), leasetable.WithObserver(each{do: func() {
		panics.Add(1)
		panic("a mistake")
	}}), leasetable.WithObserver(r))

	held := try(t, c, "n", leasetable.WithTTL(3*time.Second))
	if _, err := c.TryAcquire(t.Context(), "n"); err == nil {
		t.Error("granted twice")
	}
	next := make(chan *leasetable.Lease)
	go func() { next <- acquire(t, c, "n") }()
	await[leasetable.WaitEvent](t, r, 1)
	await[leasetable.RenewalEvent](t, r, 2)
	pgtest.Eventually(t, 10*time.Second, "it rests in the queue", func() bool { return leasetable.HeadWaits(c, "n") })
	release(t, held)
	release(t, <-next)
	lost := try(t, c, "n", leasetable.WithTTL(time.Second), leasetable.WithoutRenewal())
	within(t, 20*time.Second, "the loss", lost.Done())
	await[leasetable.HandoffEvent](t, r, 1)
	await[leasetable.LossEvent](t, r, 1)
	if err := c.Close(t.Context()); err != nil {
		t.Error(err)
	}
	pgtest.Eventually(t, 20*time.Second, "no lock is held", func() bool {
		return value[int](f, "SELECT count(*) FROM pglock.distributed_locks WHERE holder IS NOT NULL AND expires_at > clock_timestamp()") == 0
	})
	if want := int64(len(events[any](r))); panics.Load() < want {
		t.Errorf("%d panics, %d events", panics.Load(), want)
	}
	text := logged.String()
	if n := strings.Count(text, "an observer panicked"); n != 1 || !strings.Contains(text, "a mistake") || !strings.Contains(text, "observer_fault_test.go") {
		t.Errorf("%d lines tell of %d panics: %s", n, panics.Load(), text)
	}
}

// TestI9_ALoggerThatPanics: neither its own panic nor that of an observer ends a call.
func TestI9_ALoggerThatPanics(t *testing.T) {
	t.Parallel()
	c := newFixture(t).open(leasetable.WithLogger(slog.New(panicHandler{})), leasetable.WithObserver(each{do: func() { panic("a mistake") }}))
	release(t, acquire(t, c, "n"))
}

type panicHandler struct{ slog.Handler }

func (panicHandler) Enabled(context.Context, slog.Level) bool  { return true }
func (panicHandler) Handle(context.Context, slog.Record) error { panic("no disk") }

// TestASlowObserverDelaysNoRenewal, and no release and no other observer, while it does not return
// from any event of the client's own goroutines. Close does not wait for it.
func TestASlowObserverDelaysNoRenewal(t *testing.T) {
	t.Parallel()
	const leases, ttl = 20, 3 * time.Second
	f, r := newFixture(t), &recorder{}
	stop := make(chan struct{})
	var stuck atomic.Int32
	slow := slowObserver{each{do: func() { stuck.Add(1); <-stop }}}
	c := f.openUnclosed(leasetable.WithObserver(slow), leasetable.WithObserver(r), leasetable.WithTTL(ttl), leasetable.WithBatches(4, false))
	all := make([]*leasetable.Lease, leases)
	for i := range all {
		all[i] = try(t, c, string(rune('a'+i)))
	}
	await[leasetable.RenewalEvent](t, r, 4*leases) // for longer than the TTL
	for _, l := range all {
		if l.Err() != nil {
			t.Errorf("%q: %v", l.Name(), l.Err())
		}
		release(t, l)
	}
	began := time.Now()
	if err := c.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("Close took %v", took)
	}
	if n := stuck.Load(); n != 1 {
		t.Errorf("the observer was called %d times at once", n)
	}
	close(stop)
	pgtest.Eventually(t, 20*time.Second, "it receives the rest", func() bool { return int(stuck.Load()) > 4*leases })
}

// slowObserver is slow, except for the calls' own goroutines.
type slowObserver struct{ each }

func (slowObserver) ObserveAcquire(context.Context, leasetable.AcquireEvent) {}
func (slowObserver) ObserveWait(context.Context, leasetable.WaitEvent)       {}

// TestEventsOfASlowObserverAreDropped beyond a limit, the less important ones first. The log says
// so, and how many.
func TestEventsOfASlowObserverAreDropped(t *testing.T) {
	t.Parallel()
	var logged logBuffer
	d := leasetable.NewDelivery(&recorder{}, slog.New(slog.NewTextHandler(&logged, nil)))
	began, stop := make(chan struct{}), make(chan struct{})
	d.Later(10, func(leasetable.Observer) { close(began); <-stop })
	<-began
	var delivered sync.Map
	for i := range 10 {
		d.Later(5, func(leasetable.Observer) { delivered.Store(i, true) })
	}
	for i := range 10 {
		d.Later(10, func(leasetable.Observer) { delivered.Store(100+i, true) })
	}
	close(stop)
	pgtest.Eventually(t, 20*time.Second, "it has caught up", func() bool { return strings.Contains(logged.String(), "dropped=10") })
	for i := range 10 {
		_, minor := delivered.Load(i)
		_, major := delivered.Load(100 + i)
		if minor != (i < 5) || major != (i < 5) {
			t.Errorf("event %d of either kind: %v, %v", i, minor, major)
		}
	}
	pgtest.Eventually(t, 20*time.Second, "the start is logged", func() bool { return strings.Count(logged.String(), "events are dropped") == 1 })
	again := make(chan struct{})
	d.Later(1, func(leasetable.Observer) { close(again) })
	within(t, 20*time.Second, "the next event", again)
}

// TestAnObserverThatEndsItsGoroutine, as t.FailNow does, receives the following events.
func TestAnObserverThatEndsItsGoroutine(t *testing.T) {
	t.Parallel()
	d := leasetable.NewDelivery(&recorder{}, slog.New(slog.DiscardHandler))
	done := make(chan struct{})
	d.Later(10, func(leasetable.Observer) { runtime.Goexit() })
	d.Later(10, func(leasetable.Observer) { close(done) })
	within(t, 20*time.Second, "the second event", done)
}

// TestCloseWaitsForObservers that have events left, so that a program's last lease is counted.
func TestCloseWaitsForObservers(t *testing.T) {
	t.Parallel()
	o := &lateObserver{}
	c := newFixture(t).openUnclosed(leasetable.WithObserver(o))
	release(t, acquire(t, c, "n"))
	if err := c.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if !o.done.Load() {
		t.Error("Close did not wait for the release's event")
	}
}

// lateObserver takes a moment for a release.
type lateObserver struct {
	leasetable.NopObserver
	done atomic.Bool
}

func (o *lateObserver) ObserveRelease(context.Context, leasetable.ReleaseEvent) {
	<-time.After(200 * time.Millisecond)
	o.done.Store(true)
}
