package schedule

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglock/pglock-go/advisory"
	"github.com/pglock/pglock-go/fencing"
	"github.com/pglock/pglock-go/internal/errs"
)

// The last tick that was run is a fencing mark: a number that only grows. It is the tick in
// microseconds since 1970. Its resource is the job's name with this prefix.
const markPrefix = "last tick: "

// maxAhead is how far a machine's clock may be ahead of the database's.
const maxAhead = time.Minute

// errRollback makes a transaction that only reads the mark roll back.
var errRollback = errors.New("schedule: roll back")

// checkDue returns nil if the tick was not run. It tries to raise the mark to just below the tick
// and rolls that back. A mark at the tick or above refuses.
func (j *Job) checkDue(ctx context.Context, tick time.Time) error {
	below := tick.UnixMicro() - 1
	if below <= 0 {
		return invalidOption("tick %s is too early: must be after 1970", format(tick))
	}
	err := j.inTx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		if err := j.checkClock(ctx, tx, tick); err != nil {
			return err
		}
		if err := j.advance(ctx, tx, fencing.Token(below)); err != nil {
			return err
		}
		return errRollback
	})
	switch {
	case errors.Is(err, errRollback):
		return nil
	case errors.Is(err, fencing.ErrStale):
		return errs.Mark(fmt.Errorf("schedule: job %q: tick %s was already run", j.name, format(tick)), ErrDone)
	}
	return err
}

// checkClock returns ErrClock if the tick is more than maxAhead in the database's future.
func (j *Job) checkClock(ctx context.Context, tx pgx.Tx, tick time.Time) error {
	const query = "SELECT extract(epoch FROM $1::timestamptz - clock_timestamp())::float8"
	var seconds float64
	if err := tx.QueryRow(ctx, query, tick).Scan(&seconds); err != nil {
		return err
	}
	if ahead := time.Duration(seconds * float64(time.Second)); ahead > maxAhead {
		return errs.Mark(fmt.Errorf("schedule: job %q: tick %s is %v ahead of the database's clock: must be %v at most",
			j.name, format(tick), ahead.Round(time.Millisecond), maxAhead), ErrClock)
	}
	return nil
}

// lastTick returns the last tick that was run, or the zero time if there is none. It tries to set
// the lowest mark and rolls that back. The error names the mark that refuses.
func (j *Job) lastTick(ctx context.Context) (time.Time, error) {
	err := j.inTx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		if err := j.advance(ctx, tx, 1); err != nil {
			return err
		}
		return errRollback
	})
	var stale *fencing.StaleError
	switch {
	case errors.Is(err, errRollback):
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
	return j.client.DoTx(ctx, markPrefix+j.name, fn, advisory.WithIsolation(pgx.ReadCommitted))
}
