package pglock

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"sync/atomic"
	"time"

	"github.com/pglock/pglock-go/internal/timing"
	"github.com/pglock/pglock-go/leasetable"
	"github.com/pglock/pglock-go/pglock/internal/waitlist"
)

// attempt is one attempt of a call, from its submission to its answer.
type attempt struct {
	*acquisition        // its ID may change later
	id           string // of this attempt's request
	ticket       int64
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
	r.Ticket = a.ticket
	return r
}

// run sends the statements of the attempt. For one name with one holder it tries the fast path, and
// if that grants nothing, a second statement returns the reason. ctx is derived from the client's
// life.
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
		g = grants[0] // it has no outcome if another client inserted its row meanwhile
	}
	if leasetable.RowLocked(err) { // by another client's insert of a name, or by others at the gate of its permits
		return leasetable.Grant{Outcome: leasetable.Busy, Name: r.Names()[0]}, nil
	}
	return g, err
}

// deliver sends the answer to the caller, or revokes the grant if the caller gave up. It is called
// once per attempt.
func (a *attempt) deliver(g leasetable.Grant, err error) {
	a.answers <- waitlist.Answer{Grant: g, Err: err}
	if !a.state.CompareAndSwap(attemptSent, attemptAnswered) && (err == nil && g.Outcome == leasetable.Granted || leasetable.MaybeApplied(err)) {
		a.client.revoke(a.request())
	}
	a.client.endCall()
}

// abandon gives up the attempt and reports false, unless an answer arrives within
// timing.CancelGrace. It waits because a statement in progress may still acquire the lock, and
// block others until the grant is revoked.
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

// newRequestID returns a random UUID (RFC 9562, version 4) as text. All attempts of one acquire
// carry it, so that the server recognizes a repetition.
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
