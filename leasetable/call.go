package leasetable

import (
	"context"
	"time"

	"github.com/pglock/pglock-go/internal/backoff"
	"github.com/pglock/pglock-go/leasetable/internal/store"
	"github.com/pglock/pglock-go/leasetable/internal/timing"
)

// beginCall counts a call unless the client is closed. If it succeeds, endCall must follow.
func (c *Client) beginCall() error { return c.countCall(&c.isClosed) }

// beginRelease is beginCall for releases, for which Close itself waits.
func (c *Client) beginRelease() error { return c.countCall(&c.draining) }

// countCall counts a call unless refused is set, which mu guards.
func (c *Client) countCall(refused *bool) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if *refused {
		return ErrClosed
	}
	c.calls.Add(1)
	return nil
}

func (c *Client) endCall() { c.calls.Done() }

// background runs fn on a goroutine of its own, bounded by the client's life and by bound. The
// caller must be inside a counted call. Close waits for fn.
func (c *Client) background(bound time.Duration, fn func(ctx context.Context)) {
	c.calls.Go(func() {
		ctx, cancel := context.WithTimeout(c.life, bound)
		defer cancel()
		fn(ctx)
	})
}

// retry repeats op, which must be safe to repeat, until it succeeds, fails for good, or ctx ends.
// After quit is closed it does not repeat a failure; quit may be nil. Each attempt has its own time
// limit.
func (c *Client) retry(ctx context.Context, quit <-chan struct{}, op func(ctx context.Context) error) error {
	pause := newPause()
	for {
		attempt, cancel := context.WithTimeout(ctx, timing.StatementBound/2)
		err := op(attempt)
		cancel()
		if err == nil || !store.Transient(err) || ctx.Err() != nil {
			return err
		}
		// If several are ready, one more attempt is harmless.
		select {
		case <-time.After(pause.Next()):
		case <-ctx.Done():
			return err
		case <-quit:
			return err
		}
	}
}

// newPause returns the pauses between repeated attempts.
func newPause() backoff.Backoff {
	return backoff.Backoff{First: timing.FirstPause, Max: timing.MaxPause}
}

// host is the client as its local queues see it.
type host struct{ client *Client }

func (h host) BeginCall() bool { return h.client.beginRelease() == nil }
func (h host) EndCall()        { h.client.endCall() }

func (h host) Background(bound time.Duration, fn func(ctx context.Context)) {
	h.client.background(bound, fn)
}

func (h host) Retry(ctx context.Context, quit <-chan struct{}, op func(ctx context.Context) error) error {
	return h.client.retry(ctx, quit, op)
}
