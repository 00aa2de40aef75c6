package leasetable

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/pglock/pglock-go/fencing"
)

// Ensure makes sure that the lease can be trusted for d from now, and renews it at
// once if it can't. A d beyond the TTL extends it once by as much, after which
// renewals go on as before; they never shorten it. Call it before a step that must
// not be interrupted.
//
// It returns nil if the lease is trusted for d. If the lease has ended, or is
// found to have, the error wraps ErrLost or ErrReleased. If the server does not
// answer it wraps ErrUnavailable, and ctx's error if that ended first; the lease
// is then held as long as before.
func (l *Lease) Ensure(ctx context.Context, d time.Duration) error {
	if d > maxTTL {
		return invalidOption("ensure %v, the longest is %v", d, maxTTL)
	}
	c := l.client
	if err := c.enter(); err != nil {
		return err
	}
	defer c.leave()
	// Room for the round trip, so that what is left when the answer comes suffices.
	asked := max(l.cfg.ttl, d+l.cfg.margin+statementBound/5)
	var pause backoff
	for {
		if err := l.Err(); err != nil {
			return err
		}
		if time.Until(l.Deadline()) >= d {
			return nil
		}
		if err := l.renewNow(ctx, asked); err != nil && !errors.Is(err, errRowLocked) {
			return err
		}
		if time.Until(l.Deadline()) >= d {
			return l.Err()
		}
		select {
		case <-time.After(pause.next(0)):
		case <-l.Done():
		case <-ctx.Done():
			return fmt.Errorf("%w: ensure %q: %w", ErrUnavailable, l.fence.Name, context.Cause(ctx))
		}
	}
}

// renewNow asks for the lease to last as long as asked from now. It uses none of the
// connections that are kept for renewals.
func (l *Lease) renewNow(ctx context.Context, asked time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, statementBound)
	defer cancel()
	c := l.client
	var err error
	var answers map[fencing.Fence]renewed
	for range 2 { // the first may meet a connection that died long ago
		answers, err = c.sendRenewal(ctx, c.conns.send, []*Lease{l}, []time.Duration{asked})
		if err == nil || !transient(err) || ctx.Err() != nil {
			break
		}
	}
	if err != nil {
		return err
	}
	return c.settle(l, answers, asked)
}
