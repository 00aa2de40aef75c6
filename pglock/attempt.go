package pglock

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"slices"
	"sync/atomic"
	"time"

	"github.com/pglock/pglock-go/internal/timing"
	"github.com/pglock/pglock-go/leasetable"
)

// attempt is one attempt of a call, on its way to the server and back.
type attempt struct {
	*acquisition        // its ID may change later
	id           string // of this attempt's request
	ticket       int64
	expectHeld   bool // skip the fast path

	// An answer is sent before state says so: a goroutine that sees attemptAnswered finds it.
	answers chan leasetable.Answer // buffer of one
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
	attemptAbandoned       // the caller gave up: a grant is revoked
)

// request returns the request of the attempt.
func (a *attempt) request() *leasetable.Request {
	r := a.acquisition.request(a.id)
	r.Ticket = a.ticket
	return r
}

// run sends the statements of the attempt. For one name with one holder it tries the fast path, and
// if that grants nothing, it finds out why. ctx is derived from the life of the client.
func (a *attempt) run(ctx context.Context) (g leasetable.Grant, err error) {
	store, r := a.client.store, a.request()
	switch {
	case !a.cfg.plain():
		if g, err = store.AcquireSlots(ctx, r); err == nil && g.Outcome == leasetable.RequestEnded && r.All != nil {
			a.client.revoke(r) // the grants of the other names may be live
		}
	default:
		var grants []leasetable.Grant
		if !a.expectHeld {
			if grants, err = store.AcquireFast(ctx, []*leasetable.Request{r}); err != nil {
				return g, err
			} else if grants[0].Outcome == leasetable.Granted {
				return grants[0], nil
			}
		}
		grants, err = store.AcquireFull(ctx, []*leasetable.Request{r})
		g = grants[0] // without an outcome: another client inserted its row meanwhile
	}
	if leasetable.RowLocked(err) { // another client's insert of a name, or others at the gate of its permits
		return leasetable.Grant{Outcome: leasetable.Busy, Name: r.Names()[0]}, nil
	}
	return g, err
}

// deliver sends the answer to the caller, or revokes the grant if the caller gave up. It is called
// once per attempt.
func (a *attempt) deliver(g leasetable.Grant, err error) {
	a.answers <- leasetable.Answer{Grant: g, Err: err}
	if !a.state.CompareAndSwap(attemptSent, attemptAnswered) && (err == nil && g.Outcome == leasetable.Granted || leasetable.MaybeApplied(err)) {
		a.client.revoke(a.request())
	}
	a.client.endCall()
}

// beginInline reports whether the caller with that ctx may run its statement on its own goroutine.
// That saves two switches between goroutines, but to cancel the statement costs a connection. So
// while the server is slow, calls that can be canceled leave their statements to the dispatcher.
// The caller calls EndInline.
func (c *Client) beginInline(ctx context.Context) bool {
	latency, _ := c.store.Latency()
	cheap := ctx.Done() == nil || latency < timing.CancelGrace/2
	return cheap && !c.cfg.forceBatch && c.dispatcher.BeginInline()
}

// boundInline returns the context of a statement that runs on the goroutine of a caller with that
// context: it ends timing.CancelGrace after the caller's.
func (c *Client) boundInline(caller context.Context, bound time.Duration) (_ context.Context, cancel func()) {
	ctx, end := context.WithTimeout(c.life, bound)
	stop := context.AfterFunc(caller, func() { time.AfterFunc(timing.CancelGrace, end) })
	return ctx, func() { stop(); end() }
}

// runInline runs the attempt on the goroutine of the caller with that context.
func (a *attempt) runInline(caller context.Context) leasetable.Answer {
	ctx, cancel := a.client.boundInline(caller, timing.StatementBound)
	defer cancel()
	began := a.client.events.now()
	g, err := a.run(ctx)
	a.client.events.batch(OperationAcquire, 1, since(began), err)
	return leasetable.Answer{Grant: g, Err: err}
}

// abandon gives the attempt up and reports false, unless there is an answer within
// timing.CancelGrace: a statement in progress may still acquire the lock, and block others until
// the grant is revoked.
func (a *attempt) abandon() (leasetable.Answer, bool) {
	if a.state.CompareAndSwap(attemptQueued, attemptAbandoned) {
		return leasetable.Answer{}, false // it will not be sent
	}
	select {
	case got := <-a.answers:
		return got, true
	case <-time.After(timing.CancelGrace):
	}
	// The answer may arrive now. The state decides: deliver sees the same winner.
	if a.state.CompareAndSwap(attemptSent, attemptAbandoned) {
		return leasetable.Answer{}, false
	}
	return <-a.answers, true
}

// sendAcquires sends attempts in one statement and delivers the answers.
func (c *Client) sendAcquires(all []*attempt) {
	batch := all[:0]
	for _, a := range all {
		if !a.state.CompareAndSwap(attemptQueued, attemptSent) {
			c.endCall() // nothing was sent
			continue
		}
		batch = append(batch, a)
	}
	if len(batch) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(c.life, timing.StatementBound)
	defer cancel()
	began := c.events.now()
	if len(batch) == 1 && !c.cfg.forceBatch {
		g, err := batch[0].run(ctx)
		took := since(began)
		batch[0].deliver(g, err)
		c.events.batch(OperationAcquire, 1, took, err)
		return
	}
	batch = slices.DeleteFunc(batch, func(a *attempt) bool {
		if !a.cfg.plain() {
			c.sendAlone(a)
		}
		return !a.cfg.plain()
	})
	if len(batch) > 0 {
		c.sendBatch(ctx, batch, began)
	}
}

// sendBatch sends attempts of locks with one holder together and delivers the answers.
func (c *Client) sendBatch(ctx context.Context, batch []*attempt, began time.Time) {
	// Each statement commits by itself. So its answers are delivered before the next one is sent,
	// which may fail.
	rest := byName(batch)
	likely := slices.DeleteFunc(slices.Clone(rest), func(r sameName) bool { return r[0].expectHeld })
	if len(likely) > 0 {
		grants, err := c.store.AcquireFast(ctx, firsts(likely))
		if err != nil {
			took := since(began)
			c.deliverFailure(rest, err)
			c.events.batch(OperationAcquire, len(batch), took, err)
			return
		}
		for i, r := range rest {
			if r[0].expectHeld { // was not sent
				grants = slices.Insert(grants, i, leasetable.Grant{})
			}
		}
		rest = deliverAnswers(rest, grants)
	}
	if len(rest) == 0 {
		c.events.batch(OperationAcquire, len(batch), since(began), nil)
		return
	}
	grants, err := c.store.AcquireFull(ctx, firsts(rest))
	took := since(began)
	rest = deliverAnswers(rest, grants)
	if err != nil {
		c.deliverFailure(rest, err)
	} else {
		for _, r := range rest { // another client inserted its row meanwhile
			r.deliver(leasetable.Grant{})
		}
	}
	c.events.batch(OperationAcquire, len(batch), took, err)
}

// sameName holds the attempts of a batch for one name. Only the first one is sent.
type sameName []*attempt

// deliver delivers the answer to the first attempt, and what follows from it to the others.
func (r sameName) deliver(g leasetable.Grant) {
	for _, a := range r[1:] {
		a.deliver(forLater(g, r[0]), nil)
	}
	r[0].deliver(g, nil)
}

// firsts returns the requests that are sent.
func firsts(all []sameName) []*leasetable.Request {
	first := make([]*leasetable.Request, len(all))
	for i, r := range all {
		first[i] = r[0].request()
	}
	return first
}

// deliverAnswers delivers the answers, of which there is one for each name, and returns the attempts
// without an outcome.
func deliverAnswers(all []sameName, grants []leasetable.Grant) (rest []sameName) {
	for i, r := range all {
		if grants[i].Outcome == "" {
			rest = append(rest, r)
		} else {
			r.deliver(grants[i])
		}
	}
	return rest
}

// deliverFailure handles a statement that failed for all its attempts. One attempt at fault must
// not fail the others, so each is sent by itself, unless the connection failed.
func (c *Client) deliverFailure(all []sameName, err error) {
	single := !leasetable.ConnectionFailed(err)
	if single {
		c.warnOfBatch(err, "acquires")
	}
	for _, r := range all {
		for _, a := range r {
			if !single {
				a.deliver(leasetable.Grant{}, err)
				continue
			}
			c.sendAlone(a)
		}
	}
}

// sendAlone sends one attempt on a goroutine of its own.
func (c *Client) sendAlone(a *attempt) {
	c.calls.Go(func() {
		ctx, cancel := context.WithTimeout(c.life, timing.StatementBound)
		defer cancel()
		a.deliver(a.run(ctx))
	})
}

// warnOfBatch logs that the server refused a batch. Its operations are then sent one by one, which
// works but is slow.
func (c *Client) warnOfBatch(err error, what string) {
	if err != nil && !leasetable.Transient(err) {
		c.cfg.logger.Warn("pglock: the server refused a batch; its operations are sent one by one", "what", what, "error", err)
	}
}

// byName groups the attempts of a batch by name, in the order of names. The first attempt of a
// group has its smallest ticket.
func byName(batch []*attempt) (all []sameName) {
	slices.SortStableFunc(batch, func(a, b *attempt) int {
		return cmp.Or(cmp.Compare(a.name, b.name), cmp.Compare(a.ticket, b.ticket))
	})
	for i, a := range batch {
		if i > 0 && batch[i-1].name == a.name {
			last := &all[len(all)-1]
			(*last)[0].expectHeld = true // several want it
			*last = append(*last, a)
		} else {
			all = append(all, batch[i:i+1:i+1])
		}
	}
	return all
}

// forLater returns the answer for another attempt of this process in the same batch. The attempt
// that was sent is first.
func forLater(g leasetable.Grant, first *attempt) leasetable.Grant {
	switch g.Outcome {
	case leasetable.Granted:
		g.Outcome, g.Holder = leasetable.Busy, first.cfg.holder
	case leasetable.RequestEnded:
		g.Outcome = ""
	}
	return g
}

// newRequestID returns a random UUID (RFC 9562, version 4) as text. All attempts of one acquire carry
// the same request, so that the server recognizes a repetition.
func newRequestID() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails, by its contract
	b[6] = b[6]&0x0f | 0x40
	b[8] = b[8]&0x3f | 0x80
	var text [36]byte
	hex.Encode(text[:], b[:4])
	text[8] = '-'
	hex.Encode(text[9:], b[4:6])
	text[13] = '-'
	hex.Encode(text[14:], b[6:8])
	text[18] = '-'
	hex.Encode(text[19:], b[8:10])
	text[23] = '-'
	hex.Encode(text[24:], b[10:])
	return string(text[:])
}
