package pglock

import (
	"context"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/pglock/pglock-go/fencing"
	"github.com/pglock/pglock-go/internal/schema"
	"github.com/pglock/pglock-go/internal/timing"
	"github.com/pglock/pglock-go/leasetable"
	"github.com/pglock/pglock-go/pglock/internal/backend"
	"github.com/pglock/pglock-go/pglock/internal/waitlist"
)

// The listening connection listens on five channels:
//
//	the client's own     a release wakes the head of a local queue (package waitlist)
//	the same and _next   a release has woken the waiters before the head of a local queue
//	the same and _all    a release wakes the head of a local queue for several names
//	its watch channel    a release of a name that Watch watches
//	the holders'         a revocation or a request to release, for whichever client has that token
//
// Any role can send notifications, but they change nothing by themselves. Each one leads to a read
// of the row, and one read at a time is in progress, however many notifications arrive.

// listen opens the listening connection, and then reads all held grants and watched names, because
// requests, revocations and changes before that moment have not notified it.
func (s *signals) listen(ctx context.Context, channel string) (waitlist.Subscription, error) {
	c := s.client
	sub, err := c.store.Listen(ctx, schema.HolderChannel(c.cfg.schema),
		channel, channel+schema.NextSuffix, channel+schema.AllSuffix, c.watches.channel())
	if err != nil {
		return nil, err
	}
	s.notify(c.registry.all()...)
	c.watches.wakeAll()
	return subscription{sub, c}, nil
}

// needListener reports whether a watcher or a holder waits for a notification.
func (s *signals) needListener() bool {
	c := s.client
	return c.watches.any() || slices.ContainsFunc(c.registry.all(), (*Lease).awaitsRequest)
}

func (s *signals) startListener() {
	c := s.client
	if c.beginCall() == nil {
		c.waiters.StartListener()
		c.endCall()
	}
}

// subscription is the listening connection as the local queues see it, with the notifications on
// their channel only.
type subscription struct {
	backend.Listener
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
		case strings.HasSuffix(n.Channel, schema.NextSuffix):
			s.client.waiters.ReleasedAhead(n.Payload)
		case strings.HasSuffix(n.Channel, schema.AllSuffix):
			s.client.waiters.WakeMulti(n.Payload)
		default:
			s.client.signals.received(n.Payload)
		}
	}
}

// signals has the leases whose holders were notified of a request or a revocation.
type signals struct {
	client *Client

	mu       sync.Mutex // guards the fields below
	pending  map[*Lease]struct{}
	checking bool // check runs
}

// received checks the grant with the token in payload, if this client has it.
func (s *signals) received(payload string) {
	if token, err := strconv.ParseInt(payload, 10, 64); err == nil {
		s.notify(s.client.registry.claim(fencing.Token(token))...)
	}
}

// notify reads the state of the leases from the server in the background, and notifies their
// holders.
func (s *signals) notify(leases ...*Lease) {
	c := s.client
	if len(leases) == 0 || c.beginCall() != nil {
		return
	}
	defer c.endCall()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.pending == nil {
		s.pending = map[*Lease]struct{}{}
	}
	for _, l := range leases {
		s.pending[l] = struct{}{}
	}
	if !s.checking {
		s.checking = true
		c.calls.Go(s.check)
	}
}

// check checks the leases that were signaled until none are left. A failure is repeated for
// timing.OutagePatience, because a lease without renewals would otherwise miss the signal. After
// that the next renewal, or the next listening connection, finds it.
func (s *signals) check() {
	for {
		s.mu.Lock()
		leases := slices.Collect(maps.Keys(s.pending))
		s.pending = nil
		s.checking = len(leases) > 0
		s.mu.Unlock()
		if len(leases) == 0 {
			return
		}
		for part := range slices.Chunk(leases, renewBatchSize) {
			s.tellHolders(part)
		}
	}
}

// tellHolders reads the grants of the leases once and notifies their holders.
func (s *signals) tellHolders(leases []*Lease) {
	c := s.client
	var fences []fencing.Fence
	for _, l := range leases {
		fences = l.appendFences(fences)
	}
	ctx, cancel := context.WithTimeout(c.life, timing.OutagePatience)
	defer cancel()
	var answers map[fencing.Fence]leasetable.Renewal
	err := retry(ctx, c.closing, func(ctx context.Context) (err error) { // see check
		answers, err = c.store.CheckGrants(ctx, fences)
		return err
	})
	if err != nil {
		return
	}
	for _, l := range leases {
		for i := range l.count() {
			switch status := answers[l.fenceAt(i)]; {
			case status.Revoked != nil:
				_ = l.loseRevoked(l.nameAt(i), *status.Revoked) // the error is the lease's
			case status.Request != nil:
				l.requestRelease(*status.Request)
			case status.Outcome == "" && !l.isUpgrading():
				// A name of one holder knows of its last revocation only.
				_ = l.lose(l.nameAt(i), "its grant ended on the server, or another holder has the lock")
			}
		}
	}
}
