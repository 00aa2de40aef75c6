package gocronlock

import (
	"context"
	"errors"
	"log/slog"

	"github.com/pglock/pglock-go/pglock"
)

// Elector is a gocron.Elector: one scheduler, the leader, runs all jobs. It is safe for concurrent
// use.
type Elector struct {
	client *pglock.Client
	name   string
	opts   []pglock.LeaseOption
	logger func() *slog.Logger // called for each log line, since slog.Default can change

	sem   chan struct{} // holds one element while a goroutine reads or sets lease
	lease *pglock.Lease // the last one; nil before the first and after Resign
}

// NewElector returns an elector for all schedulers that use the same name. The leader holds the
// lease of that name. The lease is renewed until Resign or until the client is closed. opts are
// options of the lease, and WithElectorLogger. The TTL of the lease is the time without a leader
// after a leader's death.
//
// NewElector does not contact the database. The error wraps ErrInvalidOption.
func NewElector(client *pglock.Client, name string, opts ...pglock.LeaseOption) (*Elector, error) {
	if client == nil {
		return nil, invalidOption("client is nil: must be from pglock.Open")
	}
	e := &Elector{client: client, name: name, logger: slog.Default, sem: make(chan struct{}, 1)}
	for _, o := range opts {
		if l, ok := o.(electorLogger); ok {
			e.logger = l.logger
			continue
		}
		e.opts = append(e.opts, o)
	}
	return e, nil
}

// WithElectorLogger sets the logger of an Elector. At Warn it logs the errors of jobs that were
// made by Task. It also logs when the leader can't be determined, for example because the database
// is unreachable: gocron then skips the job silently. Nil means no logger. Default: slog.Default().
// As an option of any other lease it is ErrInvalidOption.
func WithElectorLogger(l *slog.Logger) pglock.LeaseOption {
	o := electorLogger{pglock.WithTTL(0), func() *slog.Logger { return l }}
	if l == nil {
		o.logger = func() *slog.Logger { return slog.New(slog.DiscardHandler) }
	}
	return o
}

// electorLogger is a LeaseOption because it embeds one. That one is invalid, so every lease refuses
// it. NewElector takes it out.
type electorLogger struct {
	pglock.LeaseOption
	logger func() *slog.Logger
}

// IsLeader returns nil if this scheduler is the leader. If there is no leader, this scheduler
// becomes it. If another scheduler is the leader, the error wraps pglock.ErrNotAcquired, in a
// *pglock.BusyError with the leader's name. Other errors are the client's.
func (e *Elector) IsLeader(ctx context.Context) error {
	_, err := e.lead(ctx)
	var busy *pglock.BusyError
	if err != nil && !errors.As(err, &busy) && ctx.Err() == nil {
		e.logger().Warn("pglock: leader unknown, job skipped", "name", e.name, "error", err)
	}
	return err
}

// lead returns the leader's lease. It tries to acquire the lease if this scheduler is not leader.
func (e *Elector) lead(ctx context.Context) (*pglock.Lease, error) {
	select { // if both are ready, either is right: TryAcquire checks ctx
	case e.sem <- struct{}{}:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	defer func() { <-e.sem }()
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

// Task returns a function for gocron.NewTask that calls fn. fn's context is done when the context
// of the run is done and when this scheduler stops being the leader. If this scheduler is not the
// leader at the start, the function does not call fn, and returns the error of IsLeader.
func (e *Elector) Task(fn func(ctx context.Context, lease *pglock.Lease) error) func(ctx context.Context) error {
	return func(ctx context.Context) error {
		lease, err := e.lead(ctx)
		if err != nil {
			return err
		}
		runCtx, stop := lease.WithContext(ctx)
		defer stop()
		if err = fn(runCtx, lease); err != nil && ctx.Err() == nil {
			e.logger().Warn("pglock: job failed", "name", e.name, "error", err)
		}
		return err
	}
}

// Resign releases the lease if this scheduler is the leader. Otherwise it returns nil. Call it
// after the scheduler is shut down. ctx bounds the release. After an error the lease expires by its
// TTL.
func (e *Elector) Resign(ctx context.Context) error {
	e.sem <- struct{}{} // ends soon: TryAcquire is bounded
	lease := e.lease
	e.lease = nil
	<-e.sem
	if lease == nil {
		return nil
	}
	return lease.Release(ctx)
}
