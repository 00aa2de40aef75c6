package pglock

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/pglock/pglock-go/internal/errs"
	"github.com/pglock/pglock-go/internal/timing"
	"github.com/pglock/pglock-go/pglock/observe"
)

// Extend ensures that at least d remains of the lease, and renews it at once if less does, as
// before a step that must not be interrupted. A d beyond the TTL extends the lease once, and later
// renewals never shorten it.
//
// On success, the lease is trusted for d from now, and the server keeps the lock for at most d, the
// safety margin, and twice the time that an answer takes. If the lease has ended, Extend returns
// the error of Err, and if WithMaxHold does not allow the extension, the error wraps
// ErrInvalidOption. After that and after ErrUnavailable, the lease is held as long as before.
func (l *Lease) Extend(ctx context.Context, d time.Duration) error {
	if d > timing.MaxTTL {
		return invalidOption("extend by %v: too long: must be at most %v", d, timing.MaxTTL)
	}
	c := l.client
	if err := c.beginCall(); err != nil {
		return err
	}
	defer c.endCall()
	// The slack for the round trip must leave d when the answer arrives.
	latency, _ := c.store.Latency()
	roundTripSlack := max(2*latency, timing.FirstPause)
	pause := newPause()
	for {
		if err := l.Err(); err != nil {
			return err
		}
		if time.Until(l.Deadline()) >= d {
			return nil
		}
		if err := l.checkExtension(d); err != nil {
			return err
		}
		began := time.Now()
		err := l.renewNow(ctx, max(l.cfg.ttl, d+l.cfg.margin+roundTripSlack))
		switch {
		case err == nil: // it is extended, or the answer took longer than the slack
			roundTripSlack = max(roundTripSlack, 2*time.Since(began))
			continue
		case l.Err() != nil:
			return err
		case ctx.Err() != nil:
			return errs.Errorf("pglock: extend %q: %w", l.fence.Name, endOf(ctx))
		case !errors.Is(err, errRowLocked):
			return err
		}
		// More than one case may be ready. Any order is safe, because the loop first checks whether
		// the lease has ended.
		select {
		case <-time.After(pause.Next()):
		case <-l.Done():
		case <-ctx.Done():
			return errs.Errorf("pglock: extend %q: %w", l.fence.Name, endOf(ctx))
		}
	}
}

// renewNow extends the lease, which is then trusted for ttl less the safety margin from now. It
// does not use the connections that are reserved for renewals.
func (l *Lease) renewNow(ctx context.Context, ttl time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, timing.StatementBound)
	defer cancel()
	c := l.client
	began := c.events.now()
	answers, err := c.store.Renew(ctx, l.appendExtensions(nil, ttl))
	err = c.store.Explain(fmt.Sprintf("renew %d leases", l.count()), err)
	took := since(began)
	c.events.batch(observe.OperationRenew, l.count(), took, err)
	share := c.events.share(l)
	if err == nil {
		err = l.applyRenewal(answers, ttl)
	}
	c.events.renewed(l, share, took, err)
	return err
}
