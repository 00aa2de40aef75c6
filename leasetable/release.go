package leasetable

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// releaseCall is one run of the release statement, shared by all who wait for it.
type releaseCall struct {
	done chan struct{} // closed when err is set
	err  error
}

// Release ends the lease: its Context is done first, then the lock is free for
// others. It may be called again, and returns nil once it has succeeded.
//
// If the lease was lost before, it returns a *LostError (errors.Is ErrLost) and
// changes nothing. If the server can't be reached within 5 s it returns an error
// that wraps ErrUnavailable; the lock then frees itself when its TTL is over, and
// Release may be tried again.
//
// ctx bounds how long Release waits, not the release, which goes on without it. A
// ctx that is done already, as it often is in a defer, does not count.
func (l *Lease) Release(ctx context.Context) error {
	givenUp := ctx.Done()
	if ctx.Err() != nil {
		givenUp = nil
	}
	return l.awaitRelease(ctx, givenUp)
}

// awaitRelease is Release, waiting until givenUp, for which ctx has the cause.
func (l *Lease) awaitRelease(ctx context.Context, givenUp <-chan struct{}) error {
	_ = l.Err() // due to be lost?
	call, f, err := l.startRelease()
	if err != nil {
		return err
	}
	if f != nil {
		if givenUp == nil {
			ctx = context.WithoutCancel(ctx)
		}
		l.client.free(ctx, f)
	}
	select {
	case <-call.done:
		return call.err
	case <-givenUp:
		return fmt.Errorf("leasetable: release %q: still under way: %w", l.fence.Name, context.Cause(ctx))
	}
}

// startRelease returns the call under way, or the last one if it has settled the
// matter, or a new one with what is to be done.
func (l *Lease) startRelease() (*releaseCall, *freeing, error) {
	l.end(ErrReleased)
	l.mu.Lock()
	defer l.mu.Unlock()
	if errors.Is(l.ended, ErrLost) {
		return nil, nil, l.ended
	}
	if l.release != nil {
		select {
		case <-l.release.done:
			if l.release.err == nil || errors.Is(l.release.err, ErrLost) {
				return l.release, nil, nil
			}
		default:
			return l.release, nil, nil
		}
	}
	c := l.client
	if err := c.enterToRelease(); err != nil {
		return nil, nil, fmt.Errorf("leasetable: release %q: %w", l.fence.Name, err)
	}
	again := l.release != nil // the call before may have been applied
	call := &releaseCall{done: make(chan struct{})}
	l.release = call
	return call, &freeing{lease: l, call: call, uncertain: again, to: c.waiting.reserve(l.fence.Name)}, nil
}

// parting is how long a release may go on whose caller's context has ended. It is longer than most
// take: a connection that is cut must be made anew.
const parting = 20 * time.Millisecond

// free sends f here, or by a lane. When ctx ends before there is an answer the statement is cut off, and repeated
// in the background. That does no harm: it can only free a grant that nobody uses any more. What hands the lock over
// is not cut off.
func (c *Client) free(ctx context.Context, f *freeing) {
	if f.to != nil && ctx.Done() != nil || !c.lanes.enter() {
		c.lanes.free(f)
		return
	}
	defer c.lanes.exit()
	bound, cancel := context.WithTimeout(c.life, statementBound/2)
	defer cancel()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(parting, cancel) })()
	f.send(bound)
}

// giveBack frees on the server, without waiting, what has been lost here: a renewal
// that was answered too late would keep others out for another TTL.
func (l *Lease) giveBack() {
	if l.client.enterToRelease() != nil {
		return // closing: it ends by its TTL
	}
	l.client.lanes.free(&freeing{lease: l}) // best effort: it ends by its TTL
}
