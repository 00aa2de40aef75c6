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
	plan map[*Lease]*renewal // guarded by mu
}

// renewal is when a lease is due next.
type renewal struct {
	due      time.Time
	underWay bool
}

func newRenewer(c *Client) *renewer {
	return &renewer{
		client:  c,
		wake:    make(chan struct{}, 1),
		quit:    make(chan struct{}),
		stopped: make(chan struct{}),
		plan:    map[*Lease]*renewal{},
	}
}

// add has l renewed from now on.
func (r *renewer) add(l *Lease) {
	r.mu.Lock()
	r.plan[l] = &renewal{due: time.Now().Add(jittered(l.cfg.renewEvery))}
	r.mu.Unlock()
	if l.Err() != nil { // ended before it was in the plan, so that remove missed it
		r.remove(l)
	}
	select {
	case r.wake <- struct{}{}:
	default: // the loop will look at the plan anyway
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
		batch, pause := r.collect(time.Now())
		for part := range slices.Chunk(batch, maxBatch) {
			r.batches.Go(func() { r.renewBatch(part) })
		}
		timer.Reset(pause)
	}
}

// collect returns the leases to renew now, sorted by name, and how long until the
// next is due. When one is due, those that are due soon go along.
func (r *renewer) collect(now time.Time) ([]*Lease, time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var batch []*Lease
	pause := time.Hour
	anyDue := false
	for _, p := range r.plan {
		anyDue = anyDue || !p.underWay && !p.due.After(now)
	}
	for l, p := range r.plan {
		switch soon := now.Add(l.cfg.renewEvery / 8); {
		case p.underWay:
		case anyDue && !p.due.After(soon):
			p.underWay = true
			batch = append(batch, l)
		default:
			pause = min(pause, p.due.Sub(now))
		}
	}
	slices.SortFunc(batch, func(a, b *Lease) int { return cmp.Compare(a.fence.Name, b.fence.Name) })
	return batch, pause
}

// renewBatch renews the leases in one statement, and puts them back in the plan.
// A failure is not a loss: they are tried again while they can be trusted.
func (r *renewer) renewBatch(batch []*Lease) {
	trusted := time.Until(slices.MinFunc(batch, func(a, b *Lease) int {
		return a.Deadline().Compare(b.Deadline())
	}).Deadline())
	bound := min(max(trusted/2, minAttempt), statementBound)
	ctx, cancel := context.WithTimeout(r.client.life, bound)
	defer cancel()

	asked := make([]time.Duration, len(batch))
	for i, l := range batch {
		asked[i] = l.cfg.ttl
	}
	answers, err := r.client.sendRenewal(ctx, batch, asked)
	for i, l := range batch {
		if err != nil {
			l.failed(err)
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
	r.mu.Lock()
	if p := r.plan[l]; p != nil {
		p.due, p.underWay = time.Now().Add(in), false
	}
	r.mu.Unlock()
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// jittered spreads d by a tenth to both sides.
func jittered(d time.Duration) time.Duration {
	return d - d/10 + rand.N(d/5+1)
}

// renewed is what the statement answers for one grant.
type renewed struct {
	outcome   string
	remaining time.Duration
	sent      time.Time
}

// errRowLocked: somebody outside the protocol has locked the row.
var errRowLocked = errors.New("leasetable: the lock's row is locked by another transaction")

// sendRenewal asks for each lease to last as long as asked from now.
func (c *Client) sendRenewal(ctx context.Context, leases []*Lease, asked []time.Duration) (map[fencing.Fence]renewed, error) {
	names := make([]string, len(leases))
	tokens := make([]int64, len(leases))
	us := make([]int64, len(leases))
	for i, l := range leases {
		names[i], tokens[i], us[i] = l.fence.Name, int64(l.fence.Token), asked[i].Microseconds()
	}
	answers := make(map[fencing.Fence]renewed, len(leases))
	err := c.conns.doRenewal(ctx, func(ctx context.Context, q querier, sent time.Time) error {
		rows, err := q.Query(ctx, c.sql.renew, names, tokens, us)
		if err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
			var version, left int64
			var durable bool
			fence := fencing.Fence{Schema: c.cfg.schema}
			answer := renewed{sent: sent}
			if err := rows.Scan(&fence.Name, &fence.Token, &answer.outcome, &version, &left, &durable); err != nil {
				return err
			}
			answer.remaining = time.Duration(left) * time.Microsecond
			answers[fence] = answer
		}
		return rows.Err()
	})
	return answers, explain(c.cfg.schema, fmt.Sprintf("renew %d leases", len(leases)), err)
}

// settle takes over the answer for l: nil if it is renewed, errRowLocked if it
// must be asked again, otherwise why the lease has ended.
func (c *Client) settle(l *Lease, answers map[fencing.Fence]renewed, asked time.Duration) error {
	answer := answers[l.fence]
	switch answer.outcome {
	case "renewed":
		if l.extended(answer.sent, answer.remaining, asked) {
			return nil
		}
		l.giveBack()
		return l.Err()
	case "locked":
		l.failed(errRowLocked)
		return errRowLocked
	}
	return l.lose("the server has ended it, or granted the lock to another holder")
}
