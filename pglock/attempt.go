package pglock

import (
	"cmp"
	"context"
	"crypto/rand"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/pglock/pglock-go/internal/errs"
	"github.com/pglock/pglock-go/internal/timing"
	"github.com/pglock/pglock-go/leasetable"
	"github.com/pglock/pglock-go/pglock/internal/link"
	"github.com/pglock/pglock-go/pglock/internal/waitlist"
	"github.com/pglock/pglock-go/pglock/observe"
)

// attempt is one attempt of a call, from its submission to its answer.
type attempt struct {
	*acquisition        // its ID may change later
	id           string // of this attempt's request
	ticket       int64
	lost         int  // earlier ones of that request: see acquisition.lost
	expectHeld   bool // skip the fast path

	// An answer is sent before state changes, so a goroutine that sees attemptAnswered finds it.
	answers chan waitlist.Answer // buffer of one
	state   atomic.Int32
}

// States of an attempt:
//
//	queued ─▶ sent ─▶ answered
//	   └───────┴────▶ abandoned
const (
	attemptQueued    int32 = iota
	attemptSent            // or about to be
	attemptAnswered        // the caller takes the answer
	attemptAbandoned       // the caller gave up, so a grant is revoked
)

func (a *attempt) request() *leasetable.Request {
	r := a.acquisition.request(a.id)
	r.Ticket, r.New = a.ticket, a.client.newNames.Load()
	return r
}

// run sends the statements of the attempt. It tries the fast path, and if that grants nothing, further
// statements return the reason. ctx is derived from the client's life.
func (a *attempt) run(ctx context.Context) (g leasetable.Grant, err error) {
	store, r := a.client.store, a.request()
	grants := []leasetable.Grant{{}}
	if !a.expectHeld {
		grants, err = store.AcquireFast(ctx, []*leasetable.Request{r})
	}
	switch {
	case err != nil:
	case grants[0].Outcome == leasetable.Granted:
		g = grants[0]
	case a.cfg.plain():
		grants, err = store.AcquireFull(ctx, []*leasetable.Request{r})
		g = grants[0] // it has no outcome if another client inserted its row meanwhile
	default:
		if g, err = store.AcquireSlots(ctx, r); err == nil && g.Outcome == leasetable.RequestEnded && r.All != nil {
			a.client.revoke(r, a.lost+1) // the grants of the other names may be live
		}
	}
	if link.RowLocked(err) { // by another client's insert of a name, or by others at the gate of its permits
		return leasetable.Grant{Outcome: leasetable.Busy, Name: r.Names()[0]}, nil
	}
	return g, err
}

// deliver sends the answer to the caller, or revokes the grant if the caller gave up. It is called
// once per attempt.
func (a *attempt) deliver(g leasetable.Grant, err error) {
	a.answers <- waitlist.Answer{Grant: g, Err: err}
	if !a.state.CompareAndSwap(attemptSent, attemptAnswered) && (err == nil && g.Outcome == leasetable.Granted || link.MaybeApplied(err)) {
		a.client.revoke(a.request(), a.lost+1)
	}
	a.client.endCall()
}

// abandon gives up the attempt and reports false, unless an answer arrives within
// timing.CancelGrace. It waits because a statement in progress may still acquire the lock, and
// block others until the grant is revoked. No other attempt of the call follows with the same ID,
// whose grant that would revoke too, because ctx has ended or the client closes.
func (a *attempt) abandon() (waitlist.Answer, bool) {
	if a.state.CompareAndSwap(attemptQueued, attemptAbandoned) {
		return waitlist.Answer{}, false // it will not be sent
	}
	// More than one case may be ready. An answer that arrives with the end of the grace is found by
	// the state below.
	select {
	case got := <-a.answers:
		return got, true
	case <-time.After(timing.CancelGrace):
	}
	// If the answer arrives now, the state decides, because deliver sees the same winner.
	if a.state.CompareAndSwap(attemptSent, attemptAbandoned) {
		return waitlist.Answer{}, false
	}
	return <-a.answers, true
}

// newRequestID returns a random UUID (RFC 9562, version 4) as text. The attempts of one acquire
// carry it until its grant has ended or was late, so that the server recognizes a repetition.
func newRequestID() string {
	id := pgtype.UUID{Valid: true}
	_, _ = rand.Read(id.Bytes[:]) // never fails, by its contract
	id.Bytes[6] = id.Bytes[6]&0x0f | 0x40
	id.Bytes[8] = id.Bytes[8]&0x3f | 0x80
	return id.String()
}

// bargeOr returns the ticket for an attempt, unless the call barges.
func (a *acquisition) bargeOr(ticket int64) int64 {
	if a.cfg.barging {
		return leasetable.BargeTicket
	}
	return ticket
}

// attempt makes one attempt to acquire the lock. A lone attempt usually runs its statement on this
// goroutine, and others use the dispatcher.
//
// If the caller gives up first, a statement on this goroutine is canceled, which closes its
// connection and leaves its effect unknown (see dispatch.inline), while one of the dispatcher
// continues. A grant that arrives after that is revoked.
func (a *acquisition) attempt(ctx context.Context, ticket int64, expectHeld bool) (leasetable.Grant, error) {
	if a.limit != nil && !a.attempted {
		a.limit.widen()
		defer a.limit.restrict()
	}
	if ctx.Err() != nil {
		return leasetable.Grant{}, ctx.Err()
	}
	a.facts.attempts++
	g, err := a.send(ctx, &attempt{acquisition: a, id: a.id, ticket: ticket, lost: a.lost, expectHeld: expectHeld})
	a.attempted = a.attempted || err != nil || g.Holder != "" || g.Remaining > 0
	return g, err
}

// send sends an attempt on this goroutine or through the dispatcher, as attempt describes.
func (a *acquisition) send(ctx context.Context, q *attempt) (leasetable.Grant, error) {
	var got waitlist.Answer
	if a.client.dispatch.inline(ctx, observe.OperationAcquire, timing.StatementBound, func(ctx context.Context) error {
		got.Grant, got.Err = q.run(ctx)
		return got.Err
	}) {
		if err := ctx.Err(); err != nil && got.Err != nil {
			a.noteLost(got.Err)
			return leasetable.Grant{}, err
		}
		return a.checkGrant(q.id, got)
	}
	q.answers = make(chan waitlist.Answer, 1)
	a.client.calls.Add(1) // deliver ends this call
	a.client.dispatch.acquires.Submit(q)
	left := error(nil)
	// More than one case may be ready. Any order is safe, because an answer that arrives together
	// with the end of ctx is either returned or revoked.
	select {
	case got = <-q.answers:
	case <-ctx.Done():
		left = ctx.Err()
	case <-a.client.closing:
		left = ErrClosed
	}
	if left != nil {
		answered := false
		if got, answered = q.abandon(); !answered {
			return leasetable.Grant{}, left
		}
	}
	return a.checkGrant(q.id, got)
}

// noteLost counts an attempt that may have no answer.
func (a *acquisition) noteLost(err error) {
	if link.MaybeApplied(err) {
		a.lost++
	}
}

// checkGrant returns the grant of the request with that ID if it can still be trusted. If that ID
// is used up, the next attempt gets a new one.
func (a *acquisition) checkGrant(id string, got waitlist.Answer) (leasetable.Grant, error) {
	a.noteLost(got.Err)
	switch {
	case got.Err != nil:
	case got.Grant.Outcome == leasetable.Busy:
		a.facts.blocker = got.Grant.Token
		a.facts.sawAhead(got.Grant.Ahead)
	case got.Grant.Outcome == leasetable.RequestEnded:
		a.id, a.lost = newRequestID(), 0
	case got.Grant.Outcome == leasetable.Granted && !time.Now().Before(a.cfg.deadline(got.Grant.Sent, got.Grant.Remaining, a.cfg.ttl)):
		a.client.revoke(a.request(id), a.lost+1)
		a.id, a.lost = newRequestID(), 0
		got.Err = errLateGrant
	}
	if got.Err == nil && got.Grant.Outcome == leasetable.OtherKind {
		name := cmp.Or(got.Grant.Name, a.name)
		return got.Grant, &KindError{Name: name, Wanted: a.request(id).PermitsOf(name).Capacity, Found: got.Grant.Capacity}
	}
	if got.Err == nil {
		if got.Grant.Outcome == leasetable.Granted && a.cfg.plain() {
			a.client.newNames.Store(got.Grant.New)
		}
		return got.Grant, nil
	}
	return got.Grant, a.client.store.Explain(fmt.Sprintf("acquire %q", a.name), got.Err)
}

// errLateGrant means that a grant arrived too late to be trusted.
var errLateGrant = errs.Errorf("%w: the grant arrived after the time for which it can be trusted", ErrUnavailable)
