package pglock

import (
	"context"
	"errors"
	"time"

	"github.com/pglock/pglock-go/internal/errs"
	"github.com/pglock/pglock-go/internal/timing"
)

// Extend makes sure that at least d remains of the lease, and renews it at once if less does. A d
// beyond the TTL extends the lease once, and later renewals never shorten it. Call Extend before a
// step that must not be interrupted.
//
// On success, the lease is trusted for d from now, and the server keeps the lock for at most d, the
// safety margin, and twice the time that an answer takes. If the lease has ended, the error is that
// of Err. If WithMaxHold does not allow the extension, it wraps ErrInvalidOption. After that and
// after ErrUnavailable, the lease is held as long as before.
func (l *Lease) Extend(ctx context.Context, d time.Duration) error {
	if d > timing.MaxTTL {
		return invalidOption("extend by %v: too long: must be at most %v", d, timing.MaxTTL)
	}
	c := l.client
	if err := c.beginCall(); err != nil {
		return err
	}
	defer c.endCall()
	// What is added for the round trip must leave d when the answer arrives.
	roundTripSlack := max(2*c.store.Latency(), timing.FirstPause)
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
		case err == nil: // extended, or the answer took longer than that
			roundTripSlack = max(roundTripSlack, 2*time.Since(began))
			continue
		case l.Err() != nil:
			return err
		case ctx.Err() != nil:
			return errs.Errorf("pglock: extend %q: %w", l.fence.Name, endOf(ctx))
		case !errors.Is(err, errRowLocked):
			return err
		}
		// If the lease has ended as well, the loop returns its error.
		select {
		case <-time.After(pause.Next()):
		case <-l.Done():
		case <-ctx.Done():
			return errs.Errorf("pglock: extend %q: %w", l.fence.Name, endOf(ctx))
		}
	}
}

// renewNow extends the lease, to be trusted for ttl less the safety margin from now. It does not use the
// connections that are kept for renewals.
func (l *Lease) renewNow(ctx context.Context, ttl time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, timing.StatementBound)
	defer cancel()
	c := l.client
	began := c.events.now()
	answers, err := c.store.Renew(ctx, l.appendExtensions(nil, ttl))
	took := since(began)
	c.events.batch(OperationRenew, l.count(), took, err)
	share := c.events.share(l)
	if err == nil {
		err = l.applyRenewal(answers, ttl)
	}
	c.events.renewed(l, share, took, err)
	return err
}
