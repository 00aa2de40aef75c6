package pgtx

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglock/pglock-go/internal/backoff"
	"github.com/pglock/pglock-go/internal/errs"
	"github.com/pglock/pglock-go/internal/timing"
)

// Persist calls op until it succeeds, fails for a reason that does not pass by itself (see
// Transient), or ctx is done, and returns the error of the last try. The context of a try ends
// after 5 s, so that a connection that hangs leaves time for another one. A try whose reply was
// lost may have taken effect, so op must be one that can be repeated. A rejected login is repeated
// after a longer pause, because a rotation of passwords passes, and some servers lock an account
// after a few.
func Persist(ctx context.Context, op func(ctx context.Context) error) error {
	pauses := backoff.Backoff{First: 20 * time.Millisecond, Max: time.Second}
	again := func(err error) bool {
		return Transient(err) && (!LoginRejected(err) || backoff.Sleep(ctx, timing.MaxLoginPause) == nil)
	}
	return backoff.Retry(ctx, backoff.Policy{Transient: again, Pauses: pauses, Try: 5 * time.Second}, op)
}

// Transient reports whether the operation that failed with err may succeed a moment later.
func Transient(err error) bool {
	switch state := SQLState(err); {
	case err == nil, errors.Is(err, errs.ErrDriver), errors.Is(err, pgx.ErrNoRows):
		return false
	case LoginRejected(err):
		return true
	case len(state) < 2:
		return true // of the network or the pool
	default:
		// Connection exception, transaction rollback, insufficient resources, operator
		// intervention.
		return slices.Contains([]string{"08", "40", "53", "57"}, state[:2])
	}
}
