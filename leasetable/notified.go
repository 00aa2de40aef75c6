package leasetable

import (
	"context"
	"strconv"
	"strings"
	"sync"

	"github.com/pglock/pglock-go/fencing"
	"github.com/pglock/pglock-go/leasetable/internal/store"
	"github.com/pglock/pglock-go/leasetable/internal/timing"
	"github.com/pglock/pglock-go/leasetable/internal/waitlist"
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

// listen opens the listening connection.
func (c *Client) listen(ctx context.Context, channel string) (waitlist.Subscription, error) {
	sub, err := c.store.Listen(ctx, channel, channel+store.AllSuffix, c.watchChannel(), store.HolderChannel(c.cfg.schema))
	if err != nil {
		return nil, err
	}
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
	*store.Subscription
	client *Client
}

func (s subscription) Wait(ctx context.Context) (payload string, err error) {
	for {
		channel, payload, err := s.Subscription.Wait(ctx)
		switch {
		case err != nil || channel == s.client.channel:
			return payload, err
		case strings.HasSuffix(channel, "_watch"):
			s.client.watches.wake(payload)
		case strings.HasSuffix(channel, store.AllSuffix):
			s.client.waiters.WakeAll(payload)
		default:
			s.client.holderNotified(payload)
		}
	}
}

// inbox has the leases whose holders were notified of a request or a revocation.
type inbox struct {
	mu      sync.Mutex // guards the fields below
	pending map[*Lease]struct{}
	looking bool // lookAtGrants runs
}

// holderNotified has a look at the grant with the token in payload, if this client has it.
func (c *Client) holderNotified(payload string) {
	token, err := strconv.ParseInt(payload, 10, 64)
	if err != nil {
		return
	}
	leases := c.leasesOf(fencing.Token(token))
	if len(leases) == 0 || c.beginCall() != nil {
		return
	}
	defer c.endCall()
	in := &c.inbox
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.pending == nil {
		in.pending = map[*Lease]struct{}{}
	}
	for _, l := range leases {
		in.pending[l] = struct{}{}
	}
	if !in.looking {
		in.looking = true
		c.calls.Go(c.lookAtGrants)
	}
}

// lookAtGrants reads what the server says about the leases in the inbox, and tells their holders. A
// failure is ignored: the next renewal tells them.
func (c *Client) lookAtGrants() {
	in := &c.inbox
	for {
		in.mu.Lock()
		leases, fences := in.pending, []fencing.Fence(nil)
		in.pending = nil
		in.looking = len(leases) > 0
		in.mu.Unlock()
		if len(leases) == 0 {
			return
		}
		for l := range leases {
			fences = append(fences, l.fence)
		}
		ctx, cancel := context.WithTimeout(c.life, timing.StatementBound)
		answers, _ := c.store.CheckGrants(ctx, fences)
		cancel()
		for l := range leases {
			switch status := answers[l.fence]; {
			case status.Revoked != nil:
				_ = l.loseRevoked(*status.Revoked) // the error is the lease's
			case status.Request != nil:
				l.requestRelease(*status.Request)
			}
		}
	}
}
