package leasetable

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync"
	"time"

	"github.com/pglock/pglock-go/fencing"
	"github.com/pglock/pglock-go/leasetable/internal/store"
	"github.com/pglock/pglock-go/leasetable/internal/timing"
)

// maxPendingEvents is the number of events that wait for a slow observer. Renewals and batches are
// dropped beyond half of it, so that there is room for the events that end a lease.
const maxPendingEvents = 1 << 14

// events raises the events of a client. The first observer is the log.
type events struct{ observers []*delivery }

func newEvents(cfg *clientConfig) *events {
	log := &logObserver{logger: cfg.logger}
	e := &events{observers: []*delivery{{observer: log, routine: log.debug, logger: cfg.logger}}}
	for _, o := range cfg.observers {
		e.observers = append(e.observers, &delivery{observer: o, logger: cfg.logger})
	}
	return e
}

// on reports whether an observer wants events without a failure.
func (e *events) on() bool { return len(e.observers) > 1 || e.observers[0].wants(nil) }

// now returns the time if on, and otherwise the zero time.
func (e *events) now() time.Time {
	if !e.on() {
		return time.Time{}
	}
	return time.Now()
}

// since returns the time since began, which is from now.
func since(began time.Time) time.Duration {
	if began.IsZero() {
		return 0
	}
	return time.Since(began)
}

// each calls do for every observer that wants an event with that error. The pruner's lock has no
// events.
func (e *events) each(name string, failure error, do func(d *delivery)) {
	if name == store.PruneLock {
		return
	}
	for _, d := range e.observers {
		if d.wants(failure) {
			do(d)
		}
	}
}

// wait raises a WaitEvent on this goroutine.
func (e *events) wait(ctx context.Context, ev WaitEvent) {
	ctx = context.WithoutCancel(ctx)
	e.each(ev.Name, nil, func(d *delivery) { d.call(func(o Observer) { o.ObserveWait(ctx, ev) }) })
}

// acquired raises the AcquireEvent of a on this goroutine, or one for each of its names. l is nil unless the lock was granted.
func (e *events) acquired(ctx context.Context, a *acquisition, l *Lease, err error) {
	if !e.on() {
		return
	}
	ev := AcquireEvent{
		Together: len(a.cfg.names), Try: a.facts.try, Outcome: outcomeOf(err), Err: err, Holder: a.cfg.holder,
		Began: a.began, Waited: time.Since(a.began), Attempts: a.facts.attempts,
		Queued: a.facts.queued, Ahead: a.facts.ahead, HandedOff: a.facts.handedOff, Behind: a.facts.behind,
	}
	for _, ev.Name = range a.names() {
		e.acquireEnds(ctx, ev, l)
	}
}

// adopted raises the AcquireEvent of an Adopt that began at that time, which is from now.
func (e *events) adopted(ctx context.Context, l *Lease, began time.Time) {
	e.acquireEnds(ctx, AcquireEvent{
		Name: l.fence.Name, Outcome: OutcomeGranted, Holder: l.cfg.holder, Began: began, Waited: since(began), Adopted: true,
	}, l)
}

// acquireEnds raises an AcquireEvent on this goroutine. l is nil unless the lock was granted.
func (e *events) acquireEnds(ctx context.Context, ev AcquireEvent, l *Lease) {
	if l != nil {
		ev.Token = l.fence.Token
		if l.Unlocked() {
			ev.Outcome = OutcomeUnlocked
		}
	}
	ctx = context.WithoutCancel(ctx)
	e.each(ev.Name, nil, func(d *delivery) { d.call(func(o Observer) { o.ObserveAcquire(ctx, ev) }) })
}

// handedOff raises a HandoffEvent.
func (e *events) handedOff(l *Lease, to *store.Request, token fencing.Token) {
	e.each(l.fence.Name, nil, func(d *delivery) {
		ev := HandoffEvent{Name: l.fence.Name, Released: l.fence.Token, Token: token, Holder: to.Holder}
		d.later(maxPendingEvents, func(o Observer) { o.ObserveHandoff(l.values(), ev) })
	})
}

// share returns the part of the TTL of l that remains, if on.
func (e *events) share(l *Lease) float64 {
	if !e.on() {
		return 0
	}
	return float64(time.Until(l.Deadline())+l.cfg.margin) / float64(l.cfg.ttl)
}

// renewed raises a RenewalEvent, unless the lease was released meanwhile.
func (e *events) renewed(l *Lease, share float64, took time.Duration, err error) {
	if err != nil && errors.Is(l.Err(), ErrReleased) {
		return
	}
	e.each(l.fence.Name, err, func(d *delivery) {
		ev := RenewalEvent{Name: l.fence.Name, Token: l.fence.Token, Share: share, Duration: took, Err: err}
		d.later(maxPendingEvents/2, func(o Observer) { o.ObserveRenewal(l.values(), ev) })
	})
}

// lost raises a LossEvent. expired says that the deadline has passed.
func (e *events) lost(l *Lease, expired bool, err *LostError) {
	reason := LossEnded
	switch {
	case errors.Is(err, ErrRevoked):
		reason = LossRevoked
	case errors.Is(err, ErrMaxHold):
		reason = LossMaxHold
	case expired:
		reason = LossExpired
	}
	e.each(l.fence.Name, err, func(d *delivery) {
		ev := LossEvent{
			Name: l.fence.Name, Token: l.fence.Token, Holder: l.cfg.holder,
			Reason: reason, Held: time.Since(l.since), Err: err,
		}
		d.later(maxPendingEvents, func(o Observer) { o.ObserveLoss(l.values(), ev) })
	})
}

// released raises the ReleaseEvent of f.
func (e *events) released(f *releaseOp, err error) {
	e.releaseEnds(f.lease, f.call.began, ReleaseEvent{HandedOff: f.handedOff, Again: f.call.again, Err: err})
}

// handedOver raises the ReleaseEvent of a HandOver.
func (e *events) handedOver(l *Lease) {
	e.releaseEnds(l, time.Now(), ReleaseEvent{HandedOver: true})
}

// upgraded raises the ReleaseEvent of the reader and the AcquireEvent of the writer, of a TryUpgrade
// that began at that time.
func (e *events) upgraded(ctx context.Context, reader, writer *Lease, began time.Time) {
	e.releaseEnds(reader, began, ReleaseEvent{})
	e.acquireEnds(ctx, AcquireEvent{
		Name: writer.fence.Name, Try: true, Outcome: OutcomeGranted, Holder: writer.cfg.holder,
		Began: began, Waited: time.Since(began), Attempts: 1, Behind: reader.fence.Token,
	}, writer)
}

// releaseEnds raises ev with the facts of l, whose release began at that time.
func (e *events) releaseEnds(l *Lease, began time.Time, ev ReleaseEvent) {
	if ev.Err == nil && !e.on() {
		return
	}
	ev.Name, ev.Token, ev.Holder = l.fence.Name, l.fence.Token, l.cfg.holder
	ev.Held, ev.Duration = began.Sub(l.since), time.Since(began)
	e.each(ev.Name, ev.Err, func(d *delivery) {
		d.later(maxPendingEvents, func(o Observer) { o.ObserveRelease(l.values(), ev) })
	})
}

// batch raises a BatchEvent. began is from now.
func (e *events) batch(op Operation, size int, began time.Time, err error) {
	e.each("", err, func(d *delivery) {
		ev := BatchEvent{Operation: op, Size: size, Duration: since(began), Err: err}
		d.later(maxPendingEvents/2, func(o Observer) { o.ObserveBatch(context.Background(), ev) })
	})
}

// flush waits until the observers have received all events, ctx is done, or
// timing.ObserverPatience is over: an observer that hangs must not keep a client from closing.
func (e *events) flush(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, timing.ObserverPatience)
	defer cancel()
	for _, d := range e.observers {
		done := make(chan struct{})
		d.later(2*maxPendingEvents, func(Observer) { close(done) })
		select { // either is right: nothing depends on the events
		case <-done:
		case <-ctx.Done():
			return
		}
	}
}

// values returns a context with the values of the context that was given to Acquire.
func (l *Lease) values() context.Context { return context.WithoutCancel(l.ctx) }

// delivery passes events to one observer. Each observer has its own, so that none delays another.
type delivery struct {
	observer Observer
	routine  func() bool  // whether it wants events without a failure; nil: it does
	logger   *slog.Logger // of panics and dropped events
	panicked sync.Once

	mu      sync.Mutex       // guards the fields below
	queue   []func(Observer) // oldest first
	running bool             // run is in progress
	dropped int              // since the queue was last empty
}

// wants reports whether the observer wants an event with that error.
func (d *delivery) wants(failure error) bool {
	return failure != nil || d.routine == nil || d.routine()
}

// call calls the observer. A panic ends here, and the first one is logged.
func (d *delivery) call(raise func(Observer)) {
	defer func() {
		if v := recover(); v != nil {
			d.panicked.Do(func() {
				d.warn("pglock: an observer panicked; further panics of it are not logged",
					"observer", d.name(), "panic", v, "stack", string(debug.Stack()))
			})
		}
	}()
	raise(d.observer)
}

// warn logs. It may be the logger that panics.
func (d *delivery) warn(text string, args ...any) {
	defer func() { _ = recover() }()
	d.logger.Warn(text, args...)
}

// later calls the observer on the goroutine of run, unless that many events are waiting.
func (d *delivery) later(limit int, raise func(Observer)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.queue) >= limit {
		if d.dropped++; d.dropped == 1 {
			// On its own goroutine: the logger may be what is slow.
			go d.warn("pglock: an observer is slow; events are dropped until it has caught up", "observer", d.name())
		}
		return
	}
	d.queue = append(d.queue, raise)
	if !d.running {
		d.running = true
		go d.run()
	}
}

// run delivers events until none waits. So a client without events has no goroutine for them.
func (d *delivery) run() {
	ended := false
	defer func() {
		if !ended { // the observer has called runtime.Goexit
			go d.run()
		}
	}()
	for raise := d.next(); raise != nil; raise = d.next() {
		d.call(raise)
	}
	ended = true
}

// next removes and returns the oldest event. It returns nil if there is none: then run ends.
func (d *delivery) next() func(Observer) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.queue) > 0 {
		raise := d.queue[0]
		d.queue[0], d.queue = nil, d.queue[1:]
		return raise
	}
	if dropped := d.dropped; dropped > 0 {
		d.dropped = 0
		return func(Observer) {
			d.warn("pglock: an observer was slow; it has caught up", "observer", d.name(), "dropped", dropped)
		}
	}
	d.queue, d.running = nil, false
	return nil
}

// name returns the type of the observer, for the log.
func (d *delivery) name() string { return fmt.Sprintf("%T", d.observer) }
