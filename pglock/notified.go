package pglock

import (
	"context"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/jackc/pgx/v5"

	"github.com/pglock/pglock-go/fencing"
	"github.com/pglock/pglock-go/internal/timing"
	"github.com/pglock/pglock-go/leasetable"
	"github.com/pglock/pglock-go/pglock/internal/waitlist"
)

// The listening connection listens on four channels:
//
//	the client's own     a release wakes the head of a local queue (package waitlist)
//	the same and _all    a release wakes the head of a local queue for several names
//	its watch channel    a release of a name that Watch watches
//	the holders'         a revocation or a request to release, for whichever client has that token
//
// Any role can send notifications. They change nothing by themselves: each one leads to a look at
// the row, and there is one look at a time, however many notifications arrive.

// listen opens the listening connection. Requests, revocations and changes before that moment have
// notified nobody, so it then reads all held grants and watched names.
func (c *Client) listen(ctx context.Context, channel string) (waitlist.Subscription, error) {
	sub, err := c.store.Listen(ctx, channel, channel+leasetable.AllSuffix, c.watchChannel(), leasetable.HolderChannel(c.cfg.schema))
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	held := slices.Collect(maps.Keys(c.leases))
	c.mu.Unlock()
	c.signal(held...)
	c.watches.wakeAll()
	return subscription{sub, c}, nil
}

// watchChannel is the channel of the client's rows in lock_waiters that Watch writes.
func (c *Client) watchChannel() string { return c.channel + "_watch" }

// startListener opens the listening connection in the background, unless the client is closing.
func (c *Client) startListener() {
	if c.beginCall() == nil {
		c.waiters.StartListener()
		c.endCall()
	}
}

// subscription is the listening connection as the local queues see it: with the notifications on
// their channel only.
type subscription struct {
	*pgx.Conn
	client *Client
}

func (s subscription) Wait(ctx context.Context) (payload string, err error) {
	for {
		n, err := s.WaitForNotification(ctx)
		switch {
		case err != nil:
			return "", err
		case n.Channel == s.client.channel:
			return n.Payload, nil
		case strings.HasSuffix(n.Channel, "_watch"):
			s.client.watches.wake(n.Payload)
		case strings.HasSuffix(n.Channel, leasetable.AllSuffix):
			s.client.waiters.WakeAll(n.Payload)
		default:
			s.client.holderNotified(n.Payload)
		}
	}
}

// signals has the leases whose holders were notified of a request or a revocation.
type signals struct {
	mu       sync.Mutex // guards the fields below
	pending  map[*Lease]struct{}
	checking bool // checkSignaled runs
}

// maxUnclaimed is the number of tokens that a client remembers of notifications that came before its
// grant.
const maxUnclaimed = 16

// holderNotified has a look at the grant with the token in payload, if this client has it. The answer
// to its acquire may still be on its way, because others can read the token at once. So the newest
// tokens without a lease are remembered: see startLease.
func (c *Client) holderNotified(payload string) {
	token, err := strconv.ParseInt(payload, 10, 64)
	if err != nil {
		return
	}
	c.mu.Lock()
	leases := c.leasesWith(fencing.Token(token))
	if len(leases) == 0 {
		c.unclaimed[c.lastUnclaimed%maxUnclaimed] = fencing.Token(token)
		c.lastUnclaimed++
	}
	c.mu.Unlock()
	c.signal(leases...)
}

// signal reads in the background what the server says about the leases, and tells their holders.
func (c *Client) signal(leases ...*Lease) {
	if len(leases) == 0 || c.beginCall() != nil {
		return
	}
	defer c.endCall()
	in := &c.signals
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.pending == nil {
		in.pending = map[*Lease]struct{}{}
	}
	for _, l := range leases {
		in.pending[l] = struct{}{}
	}
	if !in.checking {
		in.checking = true
		c.calls.Go(c.checkSignaled)
	}
}

// checkSignaled looks at the leases that were signaled until there are none. A failure is repeated for
// timing.OutagePatience, because a lease without renewals would never learn of it. After that the
// next renewal, or the next listening connection, tells.
func (c *Client) checkSignaled() {
	in := &c.signals
	for {
		in.mu.Lock()
		leases := slices.Collect(maps.Keys(in.pending))
		in.pending = nil
		in.checking = len(leases) > 0
		in.mu.Unlock()
		if len(leases) == 0 {
			return
		}
		for part := range slices.Chunk(leases, renewBatchSize) {
			c.tellHolders(part)
		}
	}
}

// tellHolders has one look at the leases.
func (c *Client) tellHolders(leases []*Lease) {
	var fences []fencing.Fence
	for _, l := range leases {
		fences = l.appendFences(fences)
	}
	ctx, cancel := context.WithTimeout(c.life, timing.OutagePatience)
	defer cancel()
	var answers map[fencing.Fence]leasetable.Renewal
	_ = c.retry(ctx, c.closing, func(ctx context.Context) (err error) { // see checkSignaled
		answers, err = c.store.CheckGrants(ctx, fences)
		return err
	})
	for _, l := range leases {
		for i := range l.count() {
			switch status := answers[l.fenceAt(i)]; {
			case status.Revoked != nil:
				_ = l.loseRevoked(l.nameAt(i), *status.Revoked) // the error is the lease's
			case status.Request != nil:
				l.requestRelease(*status.Request)
			}
		}
	}
}
