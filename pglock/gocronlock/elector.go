package gocronlock

import (
	"context"
	"fmt"

	"github.com/pglock/pglock-go/pglock"
)

// Elector is a gocron.Elector. It is safe for concurrent use.
type Elector struct {
	client *pglock.Client
	name   string
	opts   []pglock.LeaseOption
	turn   chan struct{} // holds one when nobody asks
	lease  *pglock.Lease // of whoever took the turn
}

// NewElector returns an elector for all schedulers that use the same name. The leader is who holds the lease of that
// name; it is renewed until Resign, or until the client is closed. opts are the lease's: its TTL is how long nobody leads
// after a leader's death. It asks nobody.
func NewElector(client *pglock.Client, name string, opts ...pglock.LeaseOption) (*Elector, error) {
	if client == nil {
		return nil, fmt.Errorf("%w: the client is nil", pglock.ErrInvalidOption)
	}
	return &Elector{client: client, name: name, opts: opts, turn: make(chan struct{}, 1)}, nil
}

// IsLeader returns nil if this scheduler leads, and takes the lead if nobody does. Otherwise the error wraps
// pglock.ErrNotAcquired, in a *pglock.BusyError that tells who leads, or is the client's.
func (e *Elector) IsLeader(ctx context.Context) error {
	_, err := e.lead(ctx)
	return err
}

func (e *Elector) lead(ctx context.Context) (*pglock.Lease, error) {
	select {
	case e.turn <- struct{}{}: // nobody else asks; what is free and what is done may both be ready, and either is right
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	defer func() { <-e.turn }()
	if e.lease != nil && e.lease.Err() == nil {
		return e.lease, nil
	}
	lease, err := e.client.TryAcquire(ctx, e.name, e.opts...)
	if err != nil {
		return nil, err
	}
	e.lease = lease
	return lease, nil
}

// Task makes a function for gocron.NewTask of one whose context is done when the job's is, and when this scheduler
// does not lead any more. It fails as IsLeader does where that is so before it begins.
func (e *Elector) Task(fn func(ctx context.Context, lease *pglock.Lease) error) func(ctx context.Context) error {
	return func(ctx context.Context) error {
		lease, err := e.lead(ctx)
		if err != nil {
			return err
		}
		during, cancel := context.WithCancelCause(ctx)
		unlink := context.AfterFunc(lease.Context(), func() { cancel(lease.Err()) })
		defer func() {
			unlink()
			cancel(nil)
		}()
		return fn(during, lease)
	}
}

// Resign gives the lead up. It returns nil if this scheduler did not lead. Call it when the scheduler has been shut down.
func (e *Elector) Resign(ctx context.Context) error {
	e.turn <- struct{}{} // asking is bounded
	lease := e.lease
	e.lease = nil
	<-e.turn
	if lease == nil {
		return nil
	}
	return lease.Release(ctx)
}
