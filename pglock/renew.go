package pglock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/pglock/pglock-go/fencing"
	"github.com/pglock/pglock-go/internal/random"
	"github.com/pglock/pglock-go/internal/timing"
	"github.com/pglock/pglock-go/leasetable"
	"github.com/pglock/pglock-go/pglock/internal/backend"
	"github.com/pglock/pglock-go/pglock/internal/link"
	"github.com/pglock/pglock-go/pglock/observe"
)

const (
	// renewBatchSize is the largest number of names that one statement renews.
	renewBatchSize = 1000

	// maxOverdueRenewals is the number of overdue attempts. They do not count among
	// link.MaxRenewals, and do not block other attempts. While all are in flight, leases that
	// become due gather.
	maxOverdueRenewals = 4
)

// renewer renews all due leases of a client in one statement, from one loop. While a statement
// hangs, the loop renews leases that become due, and retries the same leases on another connection.
type renewer struct {
	store   backend.Store
	events  *events
	wake    chan struct{}   // buffer of one; the plan has changed
	ctx     context.Context //nolint:containedctx // ends the loop and the statements
	quit    context.CancelFunc
	stopped chan struct{}
	batches sync.WaitGroup // statements in flight

	batch int // names per statement

	mu       sync.Mutex // guards the fields below
	plan     map[*Lease]*due
	next     time.Time // when the loop reads the plan next, unless it is woken
	inFlight int       // attempts, except overdue ones
	overdue  int       // overdue attempts
}

// due is the time when a lease is to be renewed next.
type due struct {
	lease   *Lease
	at      time.Time
	attempt *renewAttempt // in flight and not overdue, or nil
}

// renewAttempt is one attempt to renew some leases. When it is overdue, its leases are due again at
// once, but its answer still counts if it arrives before they end.
type renewAttempt struct {
	leases        []*Lease
	overdue, done bool // guarded by the renewer's mu
}

func newRenewer(c *Client) *renewer {
	ctx, quit := context.WithCancel(c.life)
	return &renewer{
		store:   c.store,
		events:  c.events,
		wake:    make(chan struct{}, 1),
		ctx:     ctx,
		quit:    quit,
		stopped: make(chan struct{}),
		batch:   cmp.Or(c.cfg.batch, renewBatchSize),
		plan:    map[*Lease]*due{},
	}
}

func (r *renewer) add(l *Lease) {
	// A grant that was recognized after a lost answer has less than its TTL left.
	at := l.Deadline().Add(l.cfg.margin - l.cfg.ttl).Add(jittered(l.cfg.renewEvery))
	r.mu.Lock()
	r.plan[l] = &due{lease: l, at: at}
	early := r.wakeBy(at)
	r.mu.Unlock()
	if l.Err() != nil { // ended before it was in the plan: remove missed it
		r.remove(l)
	}
	if early {
		signal(r.wake)
	}
}

// wakeBy makes the loop read the plan at that time at the latest, and reports whether the loop must
// be woken for that. The caller holds mu.
func (r *renewer) wakeBy(at time.Time) (wake bool) {
	if !at.Before(r.next) {
		return false
	}
	r.next = at
	return true
}

func (r *renewer) remove(l *Lease) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.plan, l)
}

// stop ends the loop and the statements in flight. It is called once, when no lease is held any
// more.
func (r *renewer) stop() {
	r.quit()
	<-r.stopped
	r.batches.Wait()
}

func (r *renewer) run() {
	defer close(r.stopped)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		// More than one case may be ready. Any order is safe, because a needless read of the plan
		// is harmless, and no lease is held when ctx ends.
		select {
		case <-r.ctx.Done():
			return
		case <-r.wake: // a new lease may be due before the timer
		case <-timer.C:
		}
		attempts, patience, pause := r.collect(time.Now())
		for _, a := range attempts {
			r.batches.Go(func() {
				tell := r.renew(a, patience)
				r.end(a) // before the observers, which may be slow
				tell()
			})
		}
		timer.Reset(pause)
	}
}

// collect starts attempts for the leases that are due, together with those that are due soon. It
// returns the attempts, the time after which they are overdue, and the time until the next lease is
// due. Since a hanging attempt keeps its leases from another connection until it is overdue, even
// the client's shortest lease must outlast a few attempts.
func (r *renewer) collect(now time.Time) (attempts []*renewAttempt, patience, pause time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	shortest := timing.MaxTTL
	pause = time.Hour
	if r.next.After(now) { // also if that lease has ended, so that a lease that follows it need not wake the loop
		pause = min(pause, r.next.Sub(now))
	}
	anyDue := false
	for l, p := range r.plan {
		if l.maxHoldReached(now) { // in case its timer has not fired
			delete(r.plan, l)
			continue
		}
		anyDue = anyDue || p.attempt == nil && !p.at.After(now)
		shortest = min(shortest, l.cfg.ttl-l.cfg.margin)
	}
	var batch []*due
	for l, p := range r.plan {
		switch soon := now.Add(l.cfg.renewEvery / 8); {
		case p.attempt != nil:
		case anyDue && !p.at.After(soon):
			batch = append(batch, p)
		default:
			pause = min(pause, p.at.Sub(now))
		}
	}
	slices.SortFunc(batch, func(a, b *due) int { return a.at.Compare(b.at) })
	names := r.batch // in the newest attempt
	for _, p := range batch {
		if names += p.lease.count(); names > r.batch {
			if r.inFlight == link.MaxRenewals {
				break // the others gather until the end of an attempt wakes the loop
			}
			attempts = append(attempts, &renewAttempt{})
			names = p.lease.count()
			r.inFlight++
		}
		p.attempt = attempts[len(attempts)-1]
		p.attempt.leases = append(p.attempt.leases, p.lease)
	}
	r.next = now.Add(pause)
	_, slowest := r.store.Latency()
	return attempts, renewPatience(shortest, slowest), pause
}

// renewPatience returns how long an attempt may stay unanswered before another one is sent. It
// grows with the time that renewals take, up to a third of the shortest trusted time.
func renewPatience(trusted, latency time.Duration) time.Duration {
	return max(min(max(trusted/6, 2*latency), trusted/3, timing.StatementBound), timing.MinRenewPatience)
}

// renew renews the leases in one statement and plans their next renewals. After a failure, which is
// not a loss, a lease is tried again while it can be trusted. It returns a function that raises the
// events.
func (r *renewer) renew(a *renewAttempt, patience time.Duration) (tell func()) {
	grants := renewalsOf(a.leases)
	// Deadlines do not bound the statement, because another attempt may move them while this one
	// waits.
	ctx, cancel := context.WithTimeout(r.ctx, timing.StatementBound)
	defer cancel()
	began := r.events.now()
	answers, err := r.store.RenewReserved(ctx, grants, patience,
		func(sent time.Time) { r.markOverdue(a, sent) })
	err = r.store.Explain(fmt.Sprintf("renew %d leases", len(grants)), err)
	took := since(began)
	shares, results := make([]float64, len(a.leases)), make([]error, len(a.leases))
	for i, l := range a.leases {
		shares[i], results[i] = r.events.share(l), err
		if err != nil {
			l.recordFailure(err)
			if errors.Is(l.Err(), ErrLost) {
				l.releaseLost() // the attempt may have extended it
			}
			r.retrySoon(l, a)
			continue
		}
		results[i] = l.applyRenewal(answers, l.cfg.ttl)
		switch {
		case results[i] == nil:
			r.planNext(l, answers[l.fenceAt(0)].Sent)
		case errors.Is(results[i], errRowLocked):
			r.retrySoon(l, a)
		}
	}
	return func() {
		r.events.batch(observe.OperationRenew, len(grants), took, err)
		for i, l := range a.leases {
			r.events.renewed(l, shares[i], took, results[i])
		}
	}
}

// renewalsOf returns the renewals of all names of the leases, sorted by name.
func renewalsOf(leases []*Lease) []leasetable.Extension {
	all := make([]leasetable.Extension, 0, len(leases))
	for _, l := range leases {
		all = l.appendExtensions(all, l.cfg.ttl)
	}
	slices.SortFunc(all, func(a, b leasetable.Extension) int { return strings.Compare(a.Fence.Name, b.Fence.Name) })
	return all
}

// appendExtensions appends the request to the server for a lease that is to be trusted for ttl less
// the safety margin.
func (l *Lease) appendExtensions(all []leasetable.Extension, ttl time.Duration) []leasetable.Extension {
	for i := range l.count() {
		all = append(all, leasetable.Extension{Fence: l.fenceAt(i), TTL: l.cfg.serverTTL(ttl)})
	}
	return all
}

// markOverdue makes the leases of an attempt due again, on another connection, unless so many
// attempts are overdue that another one would not help.
func (r *renewer) markOverdue(a *renewAttempt, sent time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if a.done || a.overdue || r.overdue == maxOverdueRenewals {
		return
	}
	a.overdue = true
	r.inFlight--
	r.overdue++
	now := time.Now()
	for _, l := range a.leases {
		if p := r.plan[l]; p != nil && p.attempt == a {
			p.at, p.attempt = now, nil
		}
	}
	r.store.Suspect(sent)
	signal(r.wake)
}

// end ends the attempt and lets the loop start another one.
func (r *renewer) end(a *renewAttempt) {
	r.mu.Lock()
	defer r.mu.Unlock()
	a.done = true
	if a.overdue {
		r.overdue--
	} else {
		r.inFlight--
	}
	signal(r.wake) // due leases may have gathered
}

// retrySoon plans several attempts in the rest of the trusted time of l, unless another attempt has
// followed a.
func (r *renewer) retrySoon(l *Lease, a *renewAttempt) {
	soon := min(time.Until(l.Deadline())/6, l.cfg.renewEvery/4, timing.MaxRenewRetry)
	at := time.Now().Add(jittered(max(soon, time.Millisecond)))
	r.replan(l, at, func(p *due) bool { return p.attempt == a })
}

// planNext plans the next renewal of l, counted from the time when the last one was sent, like the
// deadline, and whether or not an attempt is in flight.
func (r *renewer) planNext(l *Lease, sent time.Time) {
	at := sent.Add(jittered(l.cfg.renewEvery))
	if soonest := time.Now().Add(l.cfg.renewEvery / 4); at.Before(soonest) {
		at = soonest
	}
	r.replan(l, at, func(*due) bool { return true })
}

// replan sets when l is due next, if l is in the plan and condition holds.
func (r *renewer) replan(l *Lease, at time.Time, condition func(*due) bool) {
	r.mu.Lock()
	p := r.plan[l]
	changed := p != nil && condition(p)
	if changed {
		p.at, p.attempt = at, nil
	}
	early := changed && r.wakeBy(at)
	r.mu.Unlock()
	if early {
		signal(r.wake)
	}
}

// jittered shortens d by up to a tenth, and never lengthens it, because a renewal may be planned
// shortly before a deadline.
func jittered(d time.Duration) time.Duration { return d - random.N(d/10+1) }

// errRowLocked means that a transaction outside of the protocol has locked the row.
var errRowLocked = errors.New("pglock: the lock's row is locked by another transaction")

// applyRenewal applies the answers to l, which is to be trusted for ttl less the safety margin. It
// returns nil if all of its names are renewed, errRowLocked if the renewal must be repeated, and
// otherwise the reason of the lease's end. Of several names, the one with the worst answer decides.
func (l *Lease) applyRenewal(answers map[fencing.Fence]leasetable.Renewal, ttl time.Duration) error {
	name, answer := l.nameAt(0), answers[l.fenceAt(0)]
	for i := range l.count() {
		a := answers[l.fenceAt(i)]
		if a.Request != nil {
			l.requestRelease(*a.Request)
		}
		// In the order of texts: none, busy, granted.
		if a.Outcome < answer.Outcome || a.Outcome == answer.Outcome && a.Remaining < answer.Remaining {
			name, answer = l.nameAt(i), a
		}
	}
	switch answer.Outcome {
	case leasetable.Granted:
		if l.recordExtension(answer.Sent, answer.Remaining, ttl) {
			return nil
		}
		if errors.Is(l.Err(), ErrLost) { // if it was released, the release is in progress
			l.releaseLost()
		}
		return l.Err()
	case leasetable.Busy:
		l.recordFailure(errRowLocked)
		return errRowLocked
	}
	if l.isUpgrading() {
		return errRowLocked // its grant may be the writer's by now
	}
	if answer.Revoked != nil {
		return l.loseRevoked(name, *answer.Revoked)
	}
	return l.lose(name, "its grant ended on the server, or another holder has the lock")
}
