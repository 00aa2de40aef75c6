package pglock

import (
	"context"
	"errors"
	"os"
	"time"

	"github.com/pglock/pglock-go/internal/schema"
	"github.com/pglock/pglock-go/pglock/internal/waitlist"
)

// Statements for the default schema, for tests that send them.
var (
	AcquireFullSQL = fileSQL("acquire_full")
	PeekSQL        = fileSQL("peek")
	PruneSQL       = fileSQL("prune")
	ListSQL        = listSQL + matchingSQL + rowSQL

	RevokeGrantSQL    = fileSQL("revoke_grant")
	RequestReleaseSQL = fileSQL("request_release")
)

// fileSQL returns the statement of package leasetable in the file of that name.
func fileSQL(verb string) string {
	text, err := os.ReadFile("../leasetable/sql/" + verb + ".sql")
	if err != nil {
		panic(err)
	}
	return string(text)
}

// StopTimer keeps the lease's timer from firing, as in a process that is suspended.
func StopTimer(l *Lease) { l.timer.Stop() }

// NewBackoff returns the pauses of one waiter.
func NewBackoff() func() time.Duration {
	pause := newPause()
	return pause.Next
}

// Waiting returns the length of the client's local queue for name.
func Waiting(c *Client, name string) int { n, _, _ := c.waiters.Snapshot(name); return n }

// WithBatches limits batches and renewals to n operations, and with forced also sends single
// operations as batches.
func WithBatches(n int, forced bool) Option {
	return clientOption(func(c *clientConfig) error {
		c.batch, c.forceBatch = n, forced
		return nil
	})
}

// PendingCalls returns the number of calls that wait for a worker.
func PendingCalls(c *Client) int { return c.dispatch.Pending() }

// Listening reports whether the client's listening connection delivers.
func Listening(c *Client) bool { return c.waiters.Listening() }

// WithPruneEvery makes the client prune that often, with that retention.
func WithPruneEvery(every, retention time.Duration) Option {
	return clientOption(func(c *clientConfig) error {
		c.pruneEvery, c.retention = every, retention
		return nil
	})
}

// HeadWaits reports whether the head of the client's local queue for name has a ticket and makes no
// attempt at the moment.
func HeadWaits(c *Client, name string) bool { _, queued, _ := c.waiters.Snapshot(name); return queued }

// HeadRequest returns the ID of the request that the head of the client's local queue for name makes.
func HeadRequest(c *Client, name string) string { _, _, id := c.waiters.Snapshot(name); return id }

// ReleaseAgainOnClose makes Close release l again, as if l had ended at this moment.
func ReleaseAgainOnClose(c *Client, l *Lease) {
	c.registry.mu.Lock()
	defer c.registry.mu.Unlock()
	c.registry.leases[l] = struct{}{}
}

// RequestRelease tells the holder of l to release the lock, as the server's request does.
func RequestRelease(l *Lease, reason string) bool { return l.requestRelease(reason) }

// Tracked returns the number of leases that Close would release.
func Tracked(c *Client) int { return len(c.registry.all()) }

// StopMaxHoldTimer keeps the timer of WithMaxHold from firing, as in a process that is suspended.
func StopMaxHoldTimer(l *Lease) { l.maxHoldTimer.Stop() }

// RecordExtension does what follows a renewal of l that the server has just promised for that long.
func RecordExtension(l *Lease, remaining time.Duration) {
	l.recordExtension(time.Now(), remaining, remaining)
}

// ReleaseLost does what follows a renewal of l that is answered after l was lost.
func ReleaseLost(l *Lease) { l.releaseLost() }

// TrustedFor returns how long a lease with these options is trusted from the moment when its request
// was sent, if the server promised remaining.
func TrustedFor(remaining time.Duration, opts ...LeaseOption) (time.Duration, error) {
	c := &leaseConfig{ttl: time.Minute}
	if err := errors.Join(c.apply(opts), c.check()); err != nil {
		return 0, err
	}
	var sent time.Time
	return c.deadline(sent, remaining, c.ttl).Sub(sent), nil
}

// HolderChannel returns the channel of requests to holders.
func HolderChannel(name string) string { return schema.HolderChannel(name) }

// Repeated does what follows a grant whose first attempts got no answer.
func Repeated(l *Lease, attempts int) { l.lost = attempts }

// AllWait reports whether the head of the client's local queue for the names together has a ticket and
// makes no attempt at the moment.
func AllWait(c *Client, names ...string) bool {
	_, queued, _ := c.waiters.Snapshot(waitlist.Key("", names))
	return queued
}

// GoneWhileUpgrading does what follows a renewal that does not find the grant of l, while TryUpgrade
// waits for its answer or not.
func GoneWhileUpgrading(l *Lease, upgrading bool) error {
	if upgrading {
		_ = l.beginUpgrade(context.Background())
		defer l.endUpgrade()
	}
	return l.applyRenewal(nil, l.cfg.ttl)
}

// RefuseLeases is the first step of Close, which refuses further leases before it ends those that
// are held.
func RefuseLeases(c *Client) { c.registry.close() }

// NextLook returns when the client's renewer looks at its plan next, unless it is woken.
func NextLook(c *Client) time.Time {
	c.renew.mu.Lock()
	defer c.renew.mu.Unlock()
	return c.renew.next
}

// ErrLateGrant means that a grant arrived too late to be trusted.
var ErrLateGrant = errLateGrant

// Unclaimed returns how many notifications of tokens without a lease the client has received.
func Unclaimed(c *Client) int {
	c.registry.mu.Lock()
	defer c.registry.mu.Unlock()
	return c.registry.lastUnclaimed
}

// ErrMaxHold is the cause of a loss by WithMaxHold.
var ErrMaxHold = errMaxHold

// NeedsListener reports whether a watcher or a holder of c waits for a notification.
func NeedsListener(c *Client) bool { return c.signals.needListener() }
