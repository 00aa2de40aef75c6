package pglock

import (
	"context"
	"errors"
	"strings"

	"github.com/pglock/pglock-go/internal/backoff"
	"github.com/pglock/pglock-go/internal/errs"
	"github.com/pglock/pglock-go/internal/timing"
	"github.com/pglock/pglock-go/pglock/inspect"
)

// ErrSuperseded means that a newer call with WithSupersede wants the lock: it is in the *WaitError of
// an earlier one, and in the cause of the context of a Do that should stop. A process that was
// suspended while it waited gets it too, because it can't know.
var ErrSuperseded = errors.New("pglock: superseded by a newer call")

// WithSupersede makes the newest call win, as for deployments of the same service. Earlier calls with
// this option that wait for the lock, in any process, end with a *WaitError that wraps ErrSuperseded.
// The holder at that time is asked to release the lock, as by RequestRelease, and then the call
// waits as without the option, behind callers that don't use it.
//
// A Do with this option stops when its lease should be released, whoever asks: the context of its
// function ends, with a cause that wraps ErrSuperseded and has the reason. Other holders decide by
// Lease.ReleaseRequested, so a holder that does not stop delays the newest call.
//
// The lock must be one name with one holder. While a call waits, it also holds the lock of "newest: "
// and the name, which together have at most 512 bytes. Behind a pooler or WithPollOnly an earlier call
// ends up to 10 s later.
func WithSupersede() LeaseOption {
	return leaseOption(func(c *leaseConfig) error { c.supersede = true; return nil })
}

// newestPrefix and the name of a lock are the name of its mark: the lock whose holder is the newest
// call that waits.
const newestPrefix = "newest: "

// acquireAs acquires the lock, with WithSupersede under its mark. A waiting call sleeps below this function,
// so another one has the frame that the mark needs. See awaitHead.
func (l Lock) acquireAs(ctx context.Context, cfg *leaseConfig, how acquireMethod) (*Lease, error) {
	if cfg.supersede {
		return l.acquireUnderMark(ctx, cfg, how)
	}
	return l.client.acquire(ctx, l.name, cfg, how)
}

// acquireUnderMark acquires the lock as its newest call. The mark is released after the grant, so a newer
// call finds either this one's mark, and revokes it, or this one's grant, and asks it to stop.
func (l Lock) acquireUnderMark(ctx context.Context, cfg *leaseConfig, how acquireMethod) (*Lease, error) {
	c := l.client
	reason := "superseded by " + strings.ToValidUTF8(cfg.holder[:min(len(cfg.holder), maxReason-len("superseded by "))], "")
	mark, err := c.acquireMark(ctx, newestPrefix+l.name, cfg.holder, reason)
	if err != nil {
		return nil, err
	}
	wait, end := context.WithCancelCause(ctx)
	defer end(nil)
	defer context.AfterFunc(mark.Context(), func() { end(superseded(mark.Err())) })()
	var lease *Lease
	if err = c.askHolder(wait, l.name, reason); err == nil {
		lease, err = c.acquire(wait, l.name, cfg, how)
	}
	bound := timing.StatementBound
	if lease == nil { // the release continues without this call
		bound = timing.CancelGrace
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), bound)
	defer cancel()
	if lost := mark.Release(ctx); lost != nil && lease != nil { // the server knows better than the mark's lease
		return nil, errs.Join(&WaitError{Name: l.name, Cause: superseded(lost)}, lease.Release(ctx))
	}
	return lease, err
}

// superseded returns why a call whose mark has ended, or may have, does not wait any longer.
func superseded(end error) error {
	switch {
	case errors.Is(end, ErrClosed):
		return ErrClosed
	case errors.Is(end, ErrUnavailable):
		return ErrUnavailable
	}
	return ErrSuperseded
}

// acquireMark acquires a mark, and revokes it from earlier calls. Of calls at the same time each
// revokes those that were granted before it, and the last one keeps the mark.
func (c *Client) acquireMark(ctx context.Context, name, holder, reason string) (*Lease, error) {
	cfg := &leaseConfig{ttl: timing.DefaultTTL, labels: "{}", holder: holder}
	if err := errs.Causes(CheckName(name), cfg.check()); len(err) > 0 {
		return nil, err[0]
	}
	for pause := newPause(); ; _ = backoff.Sleep(ctx, pause.Next()) { // the end of ctx ends the next try
		mark, err := c.acquire(ctx, name, cfg, (*acquisition).tryOnce)
		var busy *BusyError
		if !errors.As(err, &busy) {
			return mark, err
		}
		if busy.Holder == "" { // it is changing hands
			continue
		}
		if err := c.Revoke(ctx, name, busy.Token, reason); err != nil && !errors.Is(err, ErrStale) && !errors.Is(err, ErrNotFound) {
			return nil, err
		}
	}
}

// askHolder asks the holder of the lock, if any, to release it.
func (c *Client) askHolder(ctx context.Context, name, reason string) error {
	for {
		held, err := c.Get(ctx, name)
		if errors.Is(err, ErrNotFound) || err == nil && (!held.Held() || held.Kind != inspect.OneHolder) { // acquire refuses another kind
			return nil
		}
		if err == nil {
			err = c.RequestRelease(ctx, name, held.Token, reason)
		}
		if !errors.Is(err, ErrStale) && !errors.Is(err, ErrNotFound) {
			return err
		}
	}
}

// untilAsked returns a context for the work under the lease that ends when the lease should be released.
func (l *Lease) untilAsked(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, end := context.WithCancelCause(ctx)
	go func() {
		select { // both: the work has ended, or it ends
		case <-l.ReleaseRequested():
			end(errs.Errorf("%w: %q", ErrSuperseded, l.ReleaseReason()))
		case <-ctx.Done():
		}
	}()
	return ctx, func() { end(nil) }
}
