package pglock

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"github.com/pglock/pglock-go/fencing"
	"github.com/pglock/pglock-go/internal/timing"
	"github.com/pglock/pglock-go/leasetable"
	"github.com/pglock/pglock-go/pglock/internal/batch"
	"github.com/pglock/pglock-go/pglock/internal/link"
	"github.com/pglock/pglock-go/pglock/observe"
)

// dispatch sends the attempts and releases of a client. A lone one is sent on its caller's
// goroutine, and those that arrive together are sent in one statement.
type dispatch struct {
	*batch.Dispatcher
	client   *Client
	acquires *batch.Queue[*attempt]
	releases *batch.Queue[*releaseOp]
}

func newDispatch(c *Client) *dispatch {
	d := &dispatch{Dispatcher: batch.New(c.store.Slots(), c.cfg.batchSize()), client: c}
	d.acquires = batch.NewQueue(d.Dispatcher, d.sendAcquires)
	d.releases = batch.NewQueue(d.Dispatcher, d.sendReleases)
	return d
}

// inline runs a statement on the goroutine of the caller with that context, and reports whether it
// did. That saves two switches between goroutines, but canceling the statement costs a connection,
// so calls that can be canceled use the dispatcher while the server is slow. The statement's
// context ends timing.CancelGrace after the caller's.
func (d *dispatch) inline(caller context.Context, op observe.Operation, bound time.Duration, send func(context.Context) error) bool {
	c := d.client
	latency, _ := c.store.Latency()
	cheap := caller.Done() == nil || latency < timing.CancelGrace/2
	if !cheap || c.cfg.forceBatch || !d.BeginInline() {
		return false
	}
	defer d.EndInline()
	ctx, end := context.WithTimeout(c.life, bound)
	defer end()
	defer context.AfterFunc(caller, func() { time.AfterFunc(timing.CancelGrace, end) })()
	began := c.events.now()
	err := send(ctx)
	c.events.batch(op, 1, since(began), err)
	return true
}

// sendAcquires sends attempts in one statement and delivers the answers.
func (d *dispatch) sendAcquires(all []*attempt) {
	batch := all[:0]
	for _, a := range all {
		if !a.state.CompareAndSwap(attemptQueued, attemptSent) {
			d.client.endCall() // nothing was sent
			continue
		}
		batch = append(batch, a)
	}
	if len(batch) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(d.client.life, timing.StatementBound)
	defer cancel()
	began := d.client.events.now()
	if len(batch) == 1 && !d.client.cfg.forceBatch {
		g, err := batch[0].run(ctx)
		took := since(began)
		batch[0].deliver(g, err)
		d.client.events.batch(observe.OperationAcquire, 1, took, err)
		return
	}
	batch = slices.DeleteFunc(batch, func(a *attempt) bool {
		if !a.cfg.plain() {
			d.sendAlone(a)
		}
		return !a.cfg.plain()
	})
	if len(batch) > 0 {
		d.sendBatch(ctx, batch, began)
	}
}

// sendBatch sends attempts of locks with one holder together and delivers the answers.
func (d *dispatch) sendBatch(ctx context.Context, batch []*attempt, began time.Time) {
	// Each statement commits by itself, so its answers are delivered before the next one is sent,
	// which may fail.
	rest := byName(batch)
	likely := slices.DeleteFunc(slices.Clone(rest), func(r sameName) bool { return r[0].expectHeld })
	if len(likely) > 0 {
		grants, err := d.client.store.AcquireFast(ctx, firsts(likely))
		if err != nil {
			took := since(began)
			d.deliverFailure(rest, err)
			d.client.events.batch(observe.OperationAcquire, len(batch), took, err)
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
		d.client.events.batch(observe.OperationAcquire, len(batch), since(began), nil)
		return
	}
	grants, err := d.client.store.AcquireFull(ctx, firsts(rest))
	took := since(began)
	rest = deliverAnswers(rest, grants)
	if err != nil {
		d.deliverFailure(rest, err)
	} else {
		for _, r := range rest { // another client inserted its row meanwhile
			r.deliver(leasetable.Grant{})
		}
	}
	d.client.events.batch(observe.OperationAcquire, len(batch), took, err)
}

// sameName holds the attempts of a batch for one name, of which only the first one is sent.
type sameName []*attempt

// deliver delivers the answer to the first attempt, and the answer that follows from it to the
// others.
func (r sameName) deliver(g leasetable.Grant) {
	for _, a := range r[1:] {
		a.deliver(forLater(g, r[0]), nil)
	}
	r[0].deliver(g, nil)
}

// firsts returns the requests of the first attempts, which are sent.
func firsts(all []sameName) []*leasetable.Request {
	first := make([]*leasetable.Request, len(all))
	for i, r := range all {
		first[i] = r[0].request()
	}
	return first
}

// deliverAnswers delivers the answers, one for each name, and returns the attempts without an
// outcome.
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

// deliverFailure handles a statement that failed for all its attempts. Unless the connection
// failed, each is sent by itself, because one attempt at fault must not fail the others.
func (d *dispatch) deliverFailure(all []sameName, err error) {
	single := !link.ConnectionFailed(err)
	if single {
		d.warnOfBatch(err, "acquires")
	}
	for _, r := range all {
		for _, a := range r {
			if !single {
				a.deliver(leasetable.Grant{}, err)
				continue
			}
			d.sendAlone(a)
		}
	}
}

// sendAlone sends one attempt on another goroutine.
func (d *dispatch) sendAlone(a *attempt) {
	d.client.calls.Go(func() {
		ctx, cancel := context.WithTimeout(d.client.life, timing.StatementBound)
		defer cancel()
		a.deliver(a.run(ctx))
	})
}

// warnOfBatch logs that the server refused a batch, whose operations are then sent one by one,
// which works but is slow.
func (d *dispatch) warnOfBatch(err error, what string) {
	if err != nil && !link.Transient(err) {
		d.client.cfg.logger.Warn("pglock: the server refused a batch; its operations are sent one by one", "what", what, "error", err)
	}
}

// byName groups the attempts of a batch by name, in the order of names, with the smallest ticket of
// each group first.
func byName(batch []*attempt) (all []sameName) {
	slices.SortStableFunc(batch, func(a, b *attempt) int {
		return cmp.Or(cmp.Compare(a.name, b.name), cmp.Compare(a.ticket, b.ticket))
	})
	for i, a := range batch {
		if i > 0 && batch[i-1].name == a.name {
			last := &all[len(all)-1]
			(*last)[0].expectHeld = true // another attempt wants it as well
			*last = append(*last, a)
		} else {
			all = append(all, batch[i:i+1:i+1])
		}
	}
	return all
}

// forLater returns the answer for another attempt of this process in the same batch, given that of
// the first, which was sent.
func forLater(g leasetable.Grant, first *attempt) leasetable.Grant {
	switch g.Outcome {
	case leasetable.Granted:
		g.Outcome, g.Holder = leasetable.Busy, first.cfg.holder
	case leasetable.RequestEnded:
		g.Outcome = ""
	}
	return g
}

// release sends f on this goroutine or through the dispatcher. If ctx ends before the answer
// arrives, the statement is canceled and then repeated in the background, which is safe because it
// can only end a grant that its holder has given up. A hand-off is not canceled.
func (d *dispatch) release(ctx context.Context, f *releaseOp) {
	cancelable := f.successor != nil && ctx.Done() != nil
	if cancelable || !d.inline(ctx, observe.OperationRelease, timing.StatementBound/2, func(ctx context.Context) error {
		f.send(ctx)
		return nil // see releaseOp.finish
	}) {
		d.releases.Submit(f)
	}
}

// sendReleases releases all of batch in one statement. An operation that needs more continues on
// another goroutine.
func (d *dispatch) sendReleases(batch []*releaseOp) {
	ctx, cancel := context.WithTimeout(d.client.life, timing.StatementBound/2)
	defer cancel()
	began := d.client.events.now()
	if len(batch) == 1 && !d.client.cfg.forceBatch {
		batch[0].send(ctx)
		d.client.events.batch(observe.OperationRelease, 1, since(began), nil)
		return
	}
	batch = slices.DeleteFunc(batch, func(f *releaseOp) bool {
		if f.successor == nil && f.lease.cfg.plain() {
			return false
		}
		go f.retry() // so that the others don't wait for a hand-off's commit
		return true
	})
	if len(batch) == 0 {
		return
	}
	slices.SortFunc(batch, func(a, b *releaseOp) int { return strings.Compare(a.lease.fence.Name, b.lease.fence.Name) })
	fences, holds := make([]fencing.Fence, len(batch)), make([]time.Duration, len(batch))
	for i, f := range batch {
		fences[i], holds[i] = f.lease.fence, f.lease.cfg.minHold
	}
	released, err := d.client.store.ReleaseBatch(ctx, fences, holds)
	took := since(began)
	d.warnOfBatch(err, "releases")
	for _, f := range batch {
		f.uncertain = f.uncertain || link.MaybeApplied(err)
		if notified, ok := released[f.lease.fence]; err == nil && ok {
			f.notified = notified
			f.finish(nil)
		} else {
			go f.retry() // to find the reason
		}
	}
	d.client.events.batch(observe.OperationRelease, len(batch), took, err)
}
