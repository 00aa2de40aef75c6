package pglock

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/pglock/pglock-go/fencing"
	"github.com/pglock/pglock-go/internal/errs"
	"github.com/pglock/pglock-go/internal/timing"
	"github.com/pglock/pglock-go/leasetable"
)

// acquisition is the state of one call of Acquire or TryAcquire.
type acquisition struct {
	client *Client
	cfg    *leaseConfig
	name   string // of several names: their display name
	id     string // of the request; all attempts with an unknown effect share it
	began  time.Time

	// lost is how many attempts with that ID had no answer. The server may have granted each of them,
	// or may do so later, after the end of an earlier grant.
	lost int

	// attempted reports that the call has had the one attempt that every call has, because the
	// server has answered that the lock is held, or has not answered.
	attempted bool
	limit     *waitLimit // of WithWait, or nil

	facts acquireFacts
}

// acquireFacts are facts for the events of an acquisition. See observe.AcquireEvent.
type acquireFacts struct {
	try, queued, handedOff bool
	attempts, ahead        int
	blocker                fencing.Token
}

// sawAhead records the number of waiters in other processes, until the WaitEvent.
func (f *acquireFacts) sawAhead(n int) {
	if !f.queued {
		f.ahead = n
	}
}

func (a *acquisition) request(id string) *leasetable.Request {
	return a.cfg.request(a.name, id)
}

// revokeLate ends what the server grants to the call's request, of which so many attempts may be granted.
func (a *acquisition) revokeLate(attempts int) { a.client.revoke(a.request(a.id), attempts) }

func (a *acquisition) names() []string {
	if a.cfg.names == nil {
		return []string{a.name}
	}
	return a.cfg.names
}

func (a *acquisition) busyError(g leasetable.Grant) *BusyError {
	name := cmp.Or(g.Name, a.name)
	return &BusyError{
		Name: name, Holder: g.Holder, Token: g.Token, Remaining: g.Remaining,
		ThisClient: a.client.registry.holds(name, g.Token),
	}
}

// awaitRemoval waits until tickets that earlier waiters of this process left behind are deleted.
func (a *acquisition) awaitRemoval(ctx context.Context) {
	for _, name := range a.names() {
		a.client.waiters.AwaitRemoval(ctx, name)
	}
}

// waitError returns the error of a call that gave up, with last as the last obstacle.
func (a *acquisition) waitError(ctx context.Context, last error) error {
	cause := ErrClosed
	if ctx.Err() != nil {
		cause = endOf(ctx)
	}
	if errors.Is(last, cause) || errors.Is(last, ErrClosed) {
		last = nil
	}
	return &WaitError{Name: a.name, Waited: time.Since(a.began), Cause: cause, Last: last}
}

// errWaitOver is the cause of a context that limitWait has ended, and is compared by identity.
var errWaitOver = errs.Errorf("%w", ErrTimeout)

// waitLimit ends the wait of a call, whose goroutine alone uses it.
type waitLimit struct {
	until time.Time
	timer *time.Timer
	over  func()
}

// limitWait returns a context that ends with ctx, and when the time of WithWait has passed. Until
// restrict is called, and during the first attempt, it lasts at least timing.FirstAttempt, because
// a lock that is free must be granted, however short the time is. The caller must call end.
func (a *acquisition) limitWait(ctx context.Context) (limited context.Context, end func()) {
	limited, cancel := context.WithCancelCause(ctx)
	over := func() { cancel(errWaitOver) }
	a.limit = &waitLimit{a.began.Add(a.cfg.wait), time.AfterFunc(max(a.cfg.wait, timing.FirstAttempt), over), over}
	return limited, func() { a.limit.timer.Stop(); cancel(nil) }
}

// widen extends the time for an attempt, unless the wait has ended. Then the context has ended when
// it returns, because an attempt must not begin while the timer fires.
func (m *waitLimit) widen() {
	if m.timer.Stop() {
		m.timer.Reset(max(time.Until(m.until), timing.FirstAttempt))
	} else {
		m.over()
	}
}

// restrict ends the wait as soon as its time has passed.
func (m *waitLimit) restrict() {
	switch rest := time.Until(m.until); {
	case rest <= 0:
		m.over()
	case m.timer.Stop():
		m.timer.Reset(rest)
	}
}

// revoke ends in the background what the server grants to r, of which so many attempts may be
// granted. The caller must be inside a counted call. A server that can't be reached for a TTL lets
// the grant expire.
//
// Because an acquire statement may still be on its way to the server, or past the point where it
// can be canceled, revoke tries again after each of timing.RevokePauses until it has found as many
// grants.
func (c *Client) revoke(r *leasetable.Request, attempts int) {
	c.background(min(r.TTL, timing.OutagePatience), func(ctx context.Context) {
		for n := range len(timing.RevokePauses) + 1 {
			err := retry(ctx, nil, func(ctx context.Context) error {
				revoked, err := c.store.Revoke(ctx, r)
				if revoked {
					attempts--
				}
				return err
			})
			if err != nil {
				c.cfg.logger.Warn("pglock: could not revoke a late grant; it expires after its TTL",
					"name", r.Name, "ttl", r.TTL, "error", err)
			}
			if err != nil || attempts == 0 || n == len(timing.RevokePauses) {
				return
			}
			closing := c.closing
			if n == 0 {
				closing = nil // Close waits for the second try, because most late statements have ended by then
			}
			select { // if more than one case is ready, a needless try is harmless
			case <-time.After(timing.RevokePauses[n]):
			case <-ctx.Done():
				return
			case <-closing: // Close does not wait longer for an unlikely grant
				return
			}
		}
	})
}

// endOf returns the error of ctx, and its cause if that differs. If WithWait or a deadlock ended
// ctx first, it returns that alone.
func endOf(ctx context.Context) error {
	switch cause := context.Cause(ctx).(type) { //nolint:errorlint // the caller's own cause may wrap such an error
	case *cycleError:
		return cause
	default:
		if cause == errWaitOver { //nolint:errorlint // as above
			return ErrTimeout
		}
	}
	return errs.ContextErr(ctx)
}
