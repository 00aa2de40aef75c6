package pglock

import (
	"fmt"
	"time"

	"github.com/pglock/pglock-go/internal/timing"
)

// WithMaxHold limits how long the lease can be held. From d after the grant it is not renewed, and
// the channel of Lease.ReleaseRequested is closed, so the holder has the rest of its lease, between
// a renewal interval less than the TTL and the TTL, to finish and call Release. After that the
// lease is lost, and its observe.LossEvent has observe.LossMaxHold. Lease.Extend does not exceed d
// plus the TTL. With 0, the default, there is no limit.
func WithMaxHold(d time.Duration) LeaseOption {
	return leaseOption(func(c *leaseConfig) error {
		c.maxHold = d
		return checkRange("longest hold", d, 0)
	})
}

// WithLockDelay keeps the lock from others for d, by default 0, after a lease has ended without a
// release because its holder died, was suspended, or was cut off. That gives work that does not
// notice the loss more time to end. A release frees the lock at once. Others see the TTL plus d as
// Remaining after each renewal, while this holder trusts its lease as without the option.
func WithLockDelay(d time.Duration) LeaseOption {
	return leaseOption(func(c *leaseConfig) error {
		c.lockDelay = d
		return checkRange("lock delay", d, 0)
	})
}

// WithMinHold keeps the lock from others until d after the grant, by the server's clock, even if it
// is released before. By default d is 0. Thus a job that takes a second runs once, although other
// replicas start it some seconds later by their own clocks, as with lockAtLeastFor of ShedLock.
//
// Release returns at once and ends the lease, whose writes are then refused. Until waiters acquire
// the lock at the end of that time, others see no holder, and the time that is left as Remaining.
// Neither the end of the holder nor a crash of the server changes that time, so if d is longer than
// the TTL, the lock of a holder that dies is free d after the grant.
func WithMinHold(d time.Duration) LeaseOption {
	return leaseOption(func(c *leaseConfig) error {
		c.minHold = d
		return checkRange("shortest hold", d, 0)
	})
}

// checkRange returns an error unless d is from least to timing.MaxTTL.
func checkRange(what string, d, least time.Duration) error {
	return require(d >= least && d <= timing.MaxTTL, "%s %v: out of range: must be from %v to %v", what, d, least, timing.MaxTTL)
}

// serverTTL returns the TTL to request from the server for a lease that is to be trusted for ttl
// less the safety margin.
func (c *leaseConfig) serverTTL(ttl time.Duration) time.Duration { return ttl + c.lockDelay }

// grantTTL returns the TTL to request from the server for a new grant, at least the shortest hold,
// because the lock of a holder that dies must not be free before that.
func (c *leaseConfig) grantTTL() time.Duration { return max(c.serverTTL(c.ttl), c.minHold) }

// deadline returns the end of the trusted time of a lease whose request for serverTTL(ttl) was sent
// at that time, and answered with the promise remaining. The last part of the promise is the lock
// delay, which the holder must not use.
func (c *leaseConfig) deadline(sent time.Time, remaining, ttl time.Duration) time.Time {
	return sent.Add(min(remaining-c.lockDelay, ttl) - c.margin)
}

// renewUntil returns the time after which the lease is not renewed, or the zero time.
func (c *leaseConfig) renewUntil(granted time.Time) time.Time {
	if c.maxHold == 0 {
		return time.Time{}
	}
	return granted.Add(c.maxHold)
}

// startMaxHold starts the timer that requests the release. The caller holds mu.
func (l *Lease) startMaxHold() {
	if l.renewUntil.IsZero() {
		return
	}
	l.maxHoldTimer = time.AfterFunc(time.Until(l.renewUntil), func() {
		l.client.renew.remove(l)
		reason := fmt.Sprintf("held for %v, the longest time that WithMaxHold allows", l.cfg.maxHold)
		if l.requestRelease(reason) {
			l.client.cfg.logger.Warn("pglock: lease held for too long: it is not renewed any more",
				"name", l.fence.Name, "token", l.fence.Token, "max_hold", l.cfg.maxHold)
		}
	})
}

// maxHoldReached reports whether renewals have stopped permanently at that time. It reads the clock
// instead of waiting for the timer, because in a process that was suspended a renewal may run
// first.
func (l *Lease) maxHoldReached(now time.Time) bool {
	return !l.renewUntil.IsZero() && !now.Before(l.renewUntil)
}

// notAfterMaxHold returns the deadline, or the latest one that WithMaxHold allows, because a
// renewal may have waited for a connection until renewals had stopped.
func (l *Lease) notAfterMaxHold(deadline time.Time) time.Time {
	if latest := l.renewUntil.Add(l.cfg.ttl - l.cfg.margin); !l.renewUntil.IsZero() && deadline.After(latest) {
		return latest
	}
	return deadline
}

// checkExtension returns an error if the lease may not be renewed any more, or not be extended by
// d.
func (l *Lease) checkExtension(d time.Duration) error {
	until := time.Now().Add(d)
	if !l.maxHoldReached(time.Now()) && l.notAfterMaxHold(until).Equal(until) {
		return nil
	}
	return invalidOption("extend %q by %v: WithMaxHold allows renewals for %v after the grant, and the lease ends a TTL (%v) later at the latest",
		l.fence.Name, d, l.cfg.maxHold, l.cfg.ttl)
}
