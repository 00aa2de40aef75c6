package leasetable

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglock/pglock-go/fencing"
)

const (
	// maxBatch is how many leases one statement renews.
	maxBatch = 1000

	// minAttempt is the least bound of one attempt: connecting anew must fit in.
	minAttempt = 50 * time.Millisecond
)

// renewer renews all leases of a client that are due, in one statement, from one
// loop. A statement that hangs does not keep it from those that become due meanwhile.
type renewer struct {
	client  *Client
	wake    chan struct{} // holds one: the plan has changed
	quit    chan struct{}
	stopped chan struct{}
	batches sync.WaitGroup // statements under way

	mu   sync.Mutex
	plan map[*Lease]*due // guarded by mu
	next time.Time       // guarded by mu; when the loop will look at the plan by itself
}

// due is when a lease is to be renewed next.
type due struct {
	at       time.Time
	underWay bool
}

func newRenewer(c *Client) *renewer {
	return &renewer{
		client:  c,
		wake:    make(chan struct{}, 1),
		quit:    make(chan struct{}),
		stopped: make(chan struct{}),
		plan:    map[*Lease]*due{},
	}
}

// add has l renewed from now on.
func (r *renewer) add(l *Lease) {
	at := time.Now().Add(jittered(l.cfg.renewEvery))
	r.mu.Lock()
	r.plan[l] = &due{at: at}
	early := at.Before(r.next)
	r.mu.Unlock()
	if l.Err() != nil { // ended before it was in the plan, so that remove missed it
		r.remove(l)
	}
	if early {
		r.look()
	}
}

// look wakes the loop.
func (r *renewer) look() {
	select {
	case r.wake <- struct{}{}:
	default: // it will look at the plan anyway
	}
}

// remove ends the renewal of l.
func (r *renewer) remove(l *Lease) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.plan, l)
}

// stop ends the loop and waits for the statements under way. It is called once.
func (r *renewer) stop() {
	close(r.quit)
	<-r.stopped
	r.batches.Wait()
}

// run is the loop.
func (r *renewer) run() {
	defer close(r.stopped)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-r.quit:
			return
		case <-r.wake: // a new lease may be due before the timer
		case <-timer.C:
		}
		batch, bound, pause := r.collect(time.Now())
		for part := range slices.Chunk(batch, maxBatch) {
			r.batches.Go(func() { r.renewBatch(part, bound) })
		}
		timer.Reset(pause)
	}
}

// collect returns the leases to renew now, sorted by name, how long an attempt may
// take, and how long until the next lease is due. When one is due, those that are due
// soon go along. An attempt that hangs keeps others from a connection: even the
// client's shortest lease must outlast a few of them.
func (r *renewer) collect(now time.Time) (batch []*Lease, bound, pause time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	bound, pause = statementBound, time.Hour
	anyDue := false
	for l, p := range r.plan {
		anyDue = anyDue || !p.underWay && !p.at.After(now)
		bound = min(bound, (l.cfg.ttl-l.cfg.margin)/6)
	}
	for l, p := range r.plan {
		switch soon := now.Add(l.cfg.renewEvery / 8); {
		case p.underWay:
		case anyDue && !p.at.After(soon):
			p.underWay = true
			batch = append(batch, l)
		default:
			pause = min(pause, p.at.Sub(now))
		}
	}
	slices.SortFunc(batch, func(a, b *Lease) int { return cmp.Compare(a.fence.Name, b.fence.Name) })
	r.next = now.Add(pause)
	return batch, max(bound, minAttempt), pause
}

// renewBatch renews the leases in one statement, and puts them back in the plan.
// A failure is not a loss: they are tried again while they can be trusted.
func (r *renewer) renewBatch(batch []*Lease, bound time.Duration) {
	ctx, cancel := context.WithTimeout(r.client.life, bound)
	defer cancel()

	asked := make([]time.Duration, len(batch))
	for i, l := range batch {
		asked[i] = l.cfg.ttl
	}
	answers, err := r.client.sendRenewal(ctx, r.client.conns.sendRenewal, batch, asked)
	for i, l := range batch {
		if err != nil {
			l.failed(err)
			if errors.Is(l.Err(), ErrLost) {
				l.giveBack() // the attempt may have prolonged it
			}
			r.again(l)
			continue
		}
		switch err := r.client.settle(l, answers, asked[i]); {
		case err == nil:
			r.plans(l, jittered(l.cfg.renewEvery))
		case errors.Is(err, errRowLocked):
			r.again(l)
		}
	}
	if err != nil {
		r.client.cfg.logger.Warn("pglock: renewal failed, trying again", "leases", len(batch), "error", err)
	}
}

// again has l tried again soon: several times in what is left of its trust.
func (r *renewer) again(l *Lease) {
	soon := min(time.Until(l.Deadline())/6, l.cfg.renewEvery/4, time.Second)
	r.plans(l, jittered(max(soon, time.Millisecond)))
}

// plans sets when l, whose renewal was under way, is due next.
func (r *renewer) plans(l *Lease, in time.Duration) {
	at := time.Now().Add(in)
	r.mu.Lock()
	if p := r.plan[l]; p != nil {
		p.at, p.underWay = at, false
	}
	early := at.Before(r.next)
	r.mu.Unlock()
	if early {
		r.look()
	}
}

// jittered spreads d by a tenth to both sides.
func jittered(d time.Duration) time.Duration {
	return d - d/10 + rand.N(d/5+1)
}

// renewed is what the server answers for one grant.
type renewed struct {
	outcome   renewal
	remaining time.Duration
	sent      time.Time
}

// renewal is what became of one lease in a renewal.
type renewal int

const (
	gone    renewal = iota // it is not the current grant any more, or has ended
	blocked                // its row is locked by somebody else at the moment: ask again
	done
)

// errRowLocked: somebody outside the protocol has locked the row.
var errRowLocked = errors.New("leasetable: the lock's row is locked by another transaction")

// sender is how a statement goes out: connections.send or connections.sendRenewal.
type sender func(ctx context.Context, s statement) (time.Time, error)

// sendRenewal asks for each lease to last as long as asked from now.
func (c *Client) sendRenewal(ctx context.Context, send sender, leases []*Lease, asked []time.Duration) (map[fencing.Fence]renewed, error) {
	names := make([]string, len(leases))
	tokens := make([]int64, len(leases))
	us := make([]int64, len(leases))
	for i, l := range leases {
		names[i], tokens[i], us[i] = l.fence.Name, int64(l.fence.Token), asked[i].Microseconds()
	}
	answers := make(map[fencing.Fence]renewed, len(leases))
	take := func(outcome renewal) func(pgx.Rows) error {
		return func(r pgx.Rows) error {
			var left int64
			fence := fencing.Fence{Schema: c.cfg.schema}
			if err := r.Scan(&fence.Name, &fence.Token, &left); err != nil {
				return err
			}
			answers[fence] = renewed{outcome: outcome, remaining: time.Duration(left) * time.Microsecond}
			return nil
		}
	}
	sent, err := send(ctx, statement{c.sql.renew, []any{names, tokens, us}, take(done)})
	if err == nil && len(answers) < len(leases) { // the rest is gone, or blocked
		_, err = send(ctx, statement{c.sql.alive, []any{names, tokens}, func(r pgx.Rows) error {
			var name string
			var token fencing.Token
			if err := r.Scan(&name, &token); err != nil {
				return err
			}
			fence := fencing.Fence{Schema: c.cfg.schema, Name: name, Token: token}
			if _, ok := answers[fence]; !ok {
				answers[fence] = renewed{outcome: blocked}
			}
			return nil
		}})
	}
	for fence, answer := range answers {
		answer.sent = sent
		answers[fence] = answer
	}
	return answers, explain(c.cfg.schema, fmt.Sprintf("renew %d leases", len(leases)), err)
}

// settle takes over the answer for l: nil if it is renewed, errRowLocked if it
// must be asked again, otherwise why the lease has ended.
func (c *Client) settle(l *Lease, answers map[fencing.Fence]renewed, asked time.Duration) error {
	switch answer := answers[l.fence]; answer.outcome {
	case done:
		if l.extended(answer.sent, answer.remaining, asked) {
			return nil
		}
		if errors.Is(l.Err(), ErrLost) { // if it was released, the release is on its way
			l.giveBack()
		}
		return l.Err()
	case blocked:
		l.failed(errRowLocked)
		return errRowLocked
	}
	return l.lose("the server has ended it, or granted the lock to another holder")
}
