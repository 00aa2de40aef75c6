package runner

import (
	"context"

	"github.com/pglock/pglock-go/internal/errs"
	"github.com/pglock/pglock-go/pglock"
)

// Guard acquires the named lock, a lease of client, and runs fn while it holds the lease. Use it
// for migration tools that this package does not know, and for any other work that must run once at
// a time. fn calls the tool's function, or starts its program with exec.CommandContext. The options
// are WithTimeout, WithLogger and WithHolder.
//
// fn's context ends when ctx ends and when the lease is lost; its cause then wraps pglock.ErrLost.
// fn must return then.
//
// Guard returns nil only if fn returned nil and the lease was held until then. If fn ran, the error
// is fn's, joined with pglock.ErrLost if the lease was lost first. If fn did not run, the error is
// the client's: a *pglock.WaitError (errors.Is pglock.ErrNotAcquired) names the holder. Guard
// releases the lock in each case, also if fn panics.
func Guard(ctx context.Context, client *pglock.Client, name string, fn func(ctx context.Context) error, opts ...Option) (err error) {
	cfg, err := newConfig(opts)
	switch {
	case err != nil:
		return err
	case client == nil || fn == nil:
		return errs.InvalidOption("runner", "Guard: the client or the function is nil")
	case cfg.name != "" || cfg.client != nil || cfg.key != nil || cfg.onlyRun != "" || cfg.table != defaultTable:
		return errs.InvalidOption("runner", "Guard: an option has no effect: must be WithTimeout, WithLogger or WithHolder")
	}
	cfg.client, cfg.name = client, name
	held, err := cfg.wait(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { // without recover, so that a panic keeps its stack
		err = errs.Join(err, release(ctx, held))
	}()
	ctx, stop := held[0].(*pglock.Lease).WithContext(ctx)
	defer stop()
	return fn(ctx)
}
