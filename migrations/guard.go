package migrations

import (
	"context"
	"errors"

	"github.com/pglock/pglock-go/pglock"
)

// Guard runs fn while it holds the lock of that name, a lease of client's. It is for
// migration tools that this package does not know, and for whatever else shall run once at
// a time: fn calls the tool's function, or starts its program (see exec.CommandContext).
//
// fn's context is done when ctx is, and when the lease is lost; its cause then wraps
// ErrLost. fn must return then.
//
// Guard returns nil only if fn returned nil and the lease was held until then. Its error is
// fn's, joined with ErrLost if the lease ended first; or, if fn did not run, a *WaitError
// (errors.Is ErrNotAcquired) that tells who holds the lock, or the client's error. The lock is
// released in any case, also when fn panics.
func Guard(ctx context.Context, client *pglock.Client, name string, fn func(ctx context.Context) error, opts ...WaitOption) (err error) {
	cfg := newWaitConfig()
	for _, o := range opts {
		if err := o.applyWait(&cfg); err != nil {
			return err
		}
	}
	if client == nil || fn == nil {
		return invalidOption("the client or the function is nil")
	}
	cfg.complete()
	h, err := wait(ctx, newLeaseLock(client, name, cfg.holder, nil), name, cfg)
	if err != nil {
		return err
	}
	defer func() { // not by recover: a panic keeps its stack
		if e := giveUp(ctx, h); e != nil && !errors.Is(err, e) {
			err = errors.Join(err, e)
		}
	}()
	ctx, stop := during(ctx, h)
	defer stop()
	return fn(ctx)
}
