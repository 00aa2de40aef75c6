package ticks

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglock/pglock-go/fencing"
	"github.com/pglock/pglock-go/pglock"
)

// Job is something that is run once per tick, whoever runs it. It is safe for concurrent use.
type Job struct {
	client *pglock.Client
	name   string
	cfg    config
	line   chan struct{} // holds one while a tick is run here; who waits to put his in is served in order
}

// New returns the job of that name. All who run it use the same name, in the same schema. The name is
// that of its lock, which is a lease, too: 1 to 500 bytes of UTF-8 without NUL. It asks nobody.
//
// The client's pool is used for a short transaction before and after each run.
func New(client *pglock.Client, name string, opts ...Option) (*Job, error) {
	cfg := newConfig()
	for _, o := range opts {
		if err := o(&cfg); err != nil {
			return nil, err
		}
	}
	switch {
	case client == nil:
		return nil, invalidOption("the client is nil")
	case name == "" || len(name) > maxName:
		return nil, fmt.Errorf("%w: a job's has 1 to %d bytes", pglock.ErrInvalidName, maxName)
	}
	return &Job{client, name, cfg, make(chan struct{}, 1)}, nil
}

// maxName leaves room for the mark's prefix.
const maxName = 512 - len(markPrefix)

// The last tick is a fencing mark: a number that only grows.
const markPrefix = "last tick: "

// Name returns the job's name.
func (j *Job) Name() string { return j.name }

// Run is a tick that is being run by this process. Call End or Abandon, once: until then no other tick of the Job is run here.
type Run struct {
	job   *Job
	lease *pglock.Lease
	tick  time.Time
}

// Lease returns the job's lease, for guards. End releases it.
func (r *Run) Lease() *pglock.Lease { return r.lease }

// Tick returns the tick, as it was given to Begin.
func (r *Run) Tick() time.Time { return r.tick }

// Begin takes the tick, if nobody has run it. It waits while somebody runs it or an earlier one.
//
// On success the tick is this caller's until End or Abandon, or until its lease is lost. Otherwise the error
// wraps ErrDone: it was run; ErrNotAcquired: it is being run, and was still when WithWait was over; ErrClock; or it is
// the client's. Nothing is held then. ctx bounds Begin alone.
func (j *Job) Begin(ctx context.Context, tick time.Time) (*Run, error) {
	bounded, cancel := context.WithTimeout(ctx, j.cfg.wait)
	defer cancel()
	if err := j.lineUp(bounded); err != nil {
		return nil, err
	}
	r, err := j.begin(ctx, bounded, tick)
	if err != nil {
		<-j.line
		return nil, err
	}
	return r, nil
}

// lineUp waits until no other tick of the job is run here. A later tick must not overtake: those before it would pass
// for done.
func (j *Job) lineUp(bounded context.Context) error {
	select {
	case j.line <- struct{}{}:
		return nil
	default:
	}
	select { // if both are ready, either is right
	case j.line <- struct{}{}:
		return nil
	case <-bounded.Done():
		return fmt.Errorf("ticks: %w: an earlier tick of %q still runs here: %w", ErrNotAcquired, j.name, context.Cause(bounded))
	}
}

func (j *Job) begin(ctx, bounded context.Context, tick time.Time) (*Run, error) {
	if err := j.pending(ctx, tick); err != nil {
		return nil, err
	}
	acquire := j.client.Acquire
	if j.cfg.wait == 0 {
		acquire, bounded = j.client.TryAcquire, ctx
	}
	labels := pglock.WithLabels(map[string]string{"tick": tick.UTC().Format(time.RFC3339Nano)})
	lease, err := acquire(bounded, j.name, pglock.WithTTL(j.cfg.ttl), labels)
	if err != nil {
		return nil, err
	}
	if err := j.pending(ctx, tick); err != nil {
		return nil, joined(err, release(ctx, lease))
	}
	return &Run{j, lease, tick}, nil
}

// End records the tick as run, and releases the lease. If the lease was lost, the error wraps ErrLost (or
// fencing.ErrStale), the tick is not recorded, and somebody else may have run it, too. It goes on when ctx is done.
func (r *Run) End(ctx context.Context) error {
	defer func() { <-r.job.line }()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), endBound)
	defer cancel()
	err := r.lease.Err()
	if err == nil {
		err = r.record(ctx)
	}
	return joined(err, release(ctx, r.lease))
}

// Abandon releases the lease: somebody else may run the tick. It goes on when ctx is done.
func (r *Run) Abandon(ctx context.Context) error {
	defer func() { <-r.job.line }()
	return release(ctx, r.lease)
}

func release(ctx context.Context, lease *pglock.Lease) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), endBound)
	defer cancel()
	return lease.Release(ctx)
}

// endBound bounds what is done when a run has ended.
const endBound = 10 * time.Second

func joined(err, other error) error {
	if other == nil || errors.Is(err, other) {
		return err
	}
	return errors.Join(err, other)
}

// record raises the mark, as the lease's holder.
func (r *Run) record(ctx context.Context) error {
	return r.job.inTx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		if err := r.lease.Guard(ctx, tx); err != nil {
			return err
		}
		err := r.job.advance(ctx, tx, fencing.Token(r.tick.UnixMicro()))
		if errors.Is(err, fencing.ErrStale) { // by its lock this was the only run: a later tick was recorded by hand
			return fmt.Errorf("%w: %w", ErrDone, err)
		}
		return err
	})
}

// errPending ends a look at the mark, which is undone.
var errPending = errors.New("ticks: pending")

// pending returns nil if the tick is to be run. It tries to raise the mark to just below the tick, which a
// mark at the tick or above refuses, and undoes that.
func (j *Job) pending(ctx context.Context, tick time.Time) error {
	below := tick.UnixMicro() - 1
	if below <= 0 {
		return invalidOption("a tick at %v", tick)
	}
	err := j.inTx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		var ahead float64
		if err := tx.QueryRow(ctx, "SELECT extract(epoch FROM $1::timestamptz - clock_timestamp())::float8", tick).Scan(&ahead); err != nil {
			return err
		}
		if d := time.Duration(ahead * float64(time.Second)); d > maxAhead {
			return fmt.Errorf("%w: tick %v of %q is %v ahead of the database's clock", ErrClock, tick.Format(time.RFC3339Nano), j.name, d.Round(time.Millisecond))
		}
		if err := j.advance(ctx, tx, fencing.Token(below)); err != nil {
			return err
		}
		return errPending
	})
	switch {
	case errors.Is(err, errPending):
		return nil
	case errors.Is(err, fencing.ErrStale):
		return fmt.Errorf("%w: %v of %q", ErrDone, tick.Format(time.RFC3339Nano), j.name)
	}
	return err
}

// last returns the last tick that was run, the zero time if none was: the mark that is in the way of the lowest one.
func (j *Job) last(ctx context.Context) (time.Time, error) {
	err := j.inTx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		if err := j.advance(ctx, tx, 1); err != nil {
			return err
		}
		return errPending
	})
	var stale *fencing.StaleError
	switch {
	case errors.Is(err, errPending):
		return time.Time{}, nil
	case errors.As(err, &stale):
		return time.UnixMicro(int64(stale.Current)), nil
	}
	return time.Time{}, err
}

func (j *Job) advance(ctx context.Context, tx pgx.Tx, token fencing.Token) error {
	return fencing.Advance(ctx, tx, markPrefix+j.name, token, fencing.WithSchema(j.client.Schema()))
}

func (j *Job) inTx(ctx context.Context, fn func(ctx context.Context, tx pgx.Tx) error) error {
	return j.client.DoTx(ctx, markPrefix+j.name, fn, pglock.WithIsolation(pgx.ReadCommitted))
}
