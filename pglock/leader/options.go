package leader

import (
	"errors"
	"log/slog"

	"github.com/pglock/pglock-go/internal/errs"
	"github.com/pglock/pglock-go/internal/quiet"
	"github.com/pglock/pglock-go/pglock"
)

var (
	// ErrNoLeader: the election has no leader at the moment.
	ErrNoLeader = errors.New("leader: no leader")

	// ErrResignRequested: the leader was asked to resign, or pglock.WithMaxHold demands it. It is
	// the cause of the context of Run's function.
	ErrResignRequested = errors.New("leader: asked to resign")
)

// Option configures an Election.
type Option func(*config) error

type config struct {
	payload string
	lease   []pglock.LeaseOption
	logger  func() *slog.Logger // called for each log line, since slog.Default can change
}

// WithPayload sets the payload of the terms of Run, for instance the address of this process, which
// is otherwise empty. Term.Proclaim replaces it in one term.
func WithPayload(payload string) Option {
	return func(c *config) error { c.payload = payload; return nil }
}

// WithLease sets the options of the leader's lease: pglock.WithTTL for the time after which a dead
// leader is replaced, pglock.WithHolder for the candidate's name, pglock.WithMaxHold for the
// longest term of Run, pglock.WithWait for the longest wait of Campaign. Without it, those of the
// client apply.
func WithLease(opts ...pglock.LeaseOption) Option {
	return func(c *config) error {
		for i, o := range opts {
			if o == nil {
				return errs.InvalidOption("leader", "WithLease: option %d is nil: must be a pglock.LeaseOption", i+1)
			}
		}
		c.lease = append(c.lease, opts...)
		return nil
	}
}

// WithLogger sets the logger of Run, which is otherwise slog.Default(), and with nil nothing is
// logged.
func WithLogger(l *slog.Logger) Option {
	l = quiet.Logger(l)
	return func(c *config) error { c.logger = func() *slog.Logger { return l }; return nil }
}
