package leasetable

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/pglock/pglock-go/fencing"
	"github.com/pglock/pglock-go/internal/errs"
	"github.com/pglock/pglock-go/leasetable/internal/store"
	"github.com/pglock/pglock-go/leasetable/internal/timing"
)

// Extend makes sure that at least d remains of the lease, and renews it at once if less does. A d
// beyond the TTL extends the lease once; later renewals go on as before and never shorten it. Call
// Extend before a step that must not be interrupted.
//
// On success, the lease is trusted for d from now. The server keeps the lock for at most d, the
// safety margin, and twice the time that an answer takes.
//
// If the lease has ended, the error wraps ErrLost or ErrReleased. If WithMaxHold does not allow the
// extension, it wraps ErrMaxHold. If the server does not answer it wraps ErrUnavailable, and if ctx
// ends first it wraps the error and cause of ctx. In these three cases the lease is held as long as
// before. If the lease is unlocked (WithFailOpen), the error wraps ErrNotAcquired.
func (l *Lease) Extend(ctx context.Context, d time.Duration) error {
	if d > timing.MaxTTL {
		return invalidOption("extend by %v: too long: must be at most %v", d, timing.MaxTTL)
	}
	if l.Unlocked() {
		return errs.Errorf("pglock: extend %q: %w", l.fence.Name, errUnlocked)
	}
	if l.outer != nil {
		if err := l.Err(); err != nil {
			return err
		}
		return l.outer.Extend(ctx, d)
	}
	c := l.client
	if err := c.beginCall(); err != nil {
		return err
	}
	defer c.endCall()
	// The room for the round trip must leave d when the answer arrives.
	room := max(2*c.store.Pace(), timing.FirstPause)
	pause := newPause()
	for {
		if err := l.Err(); err != nil {
			return err
		}
		if time.Until(l.Deadline()) >= d {
			return nil
		}
		if err := l.limited().checkExtension(d); err != nil {
			return err
		}
		began := time.Now()
		err := l.renewNow(ctx, max(l.cfg.ttl, d+l.cfg.margin+room))
		switch {
		case err == nil: // extended, or the answer took longer than the room for it
			room = max(room, 2*time.Since(began))
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

// limited returns the lease whose WithMaxHold counts: of several names, that of any part.
func (l *Lease) limited() *Lease {
	if l.parts != nil {
		return l.parts[0]
	}
	return l
}

// renewNow extends the lease, to be trusted for ttl less the safety margin from now: all its parts in one
// statement. It does not use the connections that are kept for renewals.
func (l *Lease) renewNow(ctx context.Context, ttl time.Duration) error {
	parts := l.parts
	if parts == nil {
		parts = []*Lease{l}
	}
	r := store.Renewals{TTLs: slices.Repeat([]time.Duration{l.cfg.serverTTL(ttl)}, len(parts))}
	for _, p := range parts {
		r.Grants = append(r.Grants, p.fence)
	}
	ctx, cancel := context.WithTimeout(ctx, timing.StatementBound)
	defer cancel()
	c := l.client
	began := c.events.now()
	var err error
	var answers map[fencing.Fence]store.Renewal
	for range 2 { // the first may meet a connection that died long ago
		answers, err = c.store.Renew(ctx, r)
		if err == nil || !store.Transient(err) || ctx.Err() != nil {
			break
		}
	}
	took := since(began)
	c.events.batch(OperationRenew, len(parts), began, err)
	var failed error // of the first part that was not extended
	for _, p := range parts {
		share, err := c.events.share(p), err
		if err == nil {
			err = p.applyRenewal(answers[p.fence], ttl)
		}
		c.events.renewed(p, share, took, err)
		failed = cmp.Or(failed, err)
	}
	return failed
}
