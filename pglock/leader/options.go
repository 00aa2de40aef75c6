package leader

import (
	"errors"
	"log/slog"

	"github.com/pglock/pglock-go/internal/errs"
	"github.com/pglock/pglock-go/pglock"
)

var (
	// ErrNoLeader: the election has no leader at the moment.
	ErrNoLeader = errors.New("leader: no leader")

	// ErrNoCandidate: Transfer found no candidate of that name, or it did not take the leadership over.
	ErrNoCandidate = pglock.ErrNoWaiter

	// ErrPayload: a payload is too long, or is not UTF-8 without NUL.
	ErrPayload = errors.New("leader: invalid payload")

	// ErrResignRequested: somebody has asked the leader to resign, or pglock.WithMaxHold does. It is the
	// cause of the context of Run's function.
	ErrResignRequested = errors.New("leader: asked to resign")

	// ErrStaleLeader: the work of a leader goes on after its leadership was lost. See Election.Check.
	ErrStaleLeader = errors.New("leader: leadership is stale")

	// ErrInvalidOption: an option or an argument is out of its range. The text names the rule.
	ErrInvalidOption = pglock.ErrInvalidOption
)

// Option configures an Election.
type Option func(*config) error

type config struct {
	payload string
	lease   []pglock.LeaseOption
	logger  func() *slog.Logger // called for each log line, since slog.Default can change
}

func newConfig() config { return config{logger: slog.Default} }

// WithPayload sets the payload of the terms of Run, for instance the address of this process. Observers
// see it from the first moment of a term on. Term.Proclaim replaces it in one term. Default: empty.
func WithPayload(payload string) Option {
	return func(c *config) error {
		if err := checkPayload(payload); err != nil {
			return errs.Errorf("leader: WithPayload: %w", err)
		}
		c.payload = payload
		return nil
	}
}

// WithLease sets the options of the leader's lease: pglock.WithTTL for the time after which a dead leader
// is replaced, pglock.WithHolder for the candidate's name, pglock.WithMaxHold for the longest term of Run,
// pglock.WithWait for the longest wait of Campaign. Campaign refuses pglock.WithFailOpen and does not
// join a lease with pglock.WithJoin. Default: those of the client.
func WithLease(opts ...pglock.LeaseOption) Option {
	return func(c *config) error {
		for i, o := range opts {
			if o == nil {
				return invalidOption("WithLease: option %d is nil: must be a pglock.LeaseOption", i+1)
			}
		}
		c.lease = append(c.lease, opts...)
		return nil
	}
}

// WithLogger sets the logger of Run, which logs failures at Warn. Nil means no logger. Default:
// slog.Default().
func WithLogger(l *slog.Logger) Option {
	return func(c *config) error {
		c.logger = func() *slog.Logger { return l }
		if l == nil {
			c.logger = func() *slog.Logger { return slog.New(slog.DiscardHandler) }
		}
		return nil
	}
}

func invalidOption(format string, args ...any) error {
	return errs.InvalidOption("leader", format, args...)
}
