package trial

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Row is one promise.
type Row struct {
	Number string // as in the design, "B1"
	What   string // is measured, in a few words

	// Prepare makes what the subjects share, a server or a table. It may be nil.
	Prepare func(ctx context.Context, s *Scope) error

	Subjects []Subject
	Targets  []Target

	// Throughput marks a row that counts operations per second. A round is one long turn of each
	// subject, because short turns would measure how the operations start.
	Throughput bool

	// Once measures each subject in one long turn, which decides its own length.
	Once bool

	// Long marks a row that takes minutes, which a run measures only if it is asked for.
	Long bool
}

// Subject is one thing that is measured.
type Subject struct {
	Name string // unique in its row
	Role Role
	Open Open
}

// Open prepares a subject. If it is not installed on this machine, the error wraps ErrMissing and says
// what to install.
type Open func(ctx context.Context, s *Scope) (Meter, error)

// Meter exercises a subject and measures it.
type Meter interface {
	// Turn exercises the subject for about d and adds to the figures. Preparation and clean-up, such as
	// clearing a table, are not counted.
	Turn(ctx context.Context, d time.Duration) error

	// Figures returns the figures of the turns since the last call: the same ones in the same order each
	// time.
	Figures() []Figure
}

// Role is a subject's role in the comparison.
type Role string

// The roles.
const (
	Ours  Role = "ours"
	Floor Role = "floor" // the least that any implementation must do
	Peer  Role = "peer"  // what people would use instead
)

// ErrMissing means that a subject is not installed on this machine.
var ErrMissing = errors.New("trial: missing")

// Scale is how thoroughly a row is measured.
type Scale struct {
	Rounds   int
	Turns    int           // of each subject in a round
	Turn     time.Duration // the length of one
	LongTurn time.Duration // the length of one in a row with Throughput, after the warm-up
	Quick    bool          // an indication, with less of everything
	Short    bool          // see that it runs, and don't judge
}

// adapt returns the scale at which a row of this kind is measured.
func (r Row) adapt(s Scale) Scale {
	if r.Throughput {
		s.Turns, s.Turn = 1, s.LongTurn
	}
	if r.Once {
		s.Rounds, s.Turns = 1, 1
	}
	return s
}

// Scope lasts from the preparation of a row to its end.
type Scope struct {
	Scale
	closers []func() error
	servers map[string]string
}

// Defer registers fn to be called when the row is done, in reverse order.
func (s *Scope) Defer(fn func() error) { s.closers = append(s.closers, fn) }

// Server notes the version of a peer's server, which is kept with the figures.
func (s *Scope) Server(program, version string) {
	if s.servers == nil {
		s.servers = map[string]string{}
	}
	s.servers[program] = version
}

func (s *Scope) close() error {
	var errs []error
	for i := len(s.closers) - 1; i >= 0; i-- {
		errs = append(errs, s.closers[i]())
	}
	s.closers = nil
	return errors.Join(errs...)
}

// check returns an error for a row that contradicts itself.
func (r Row) check() error {
	known := map[string]bool{}
	for _, s := range r.Subjects {
		if known[s.Name] {
			return fmt.Errorf("trial: %s has two subjects %q", r.Number, s.Name)
		}
		known[s.Name] = true
	}
	return nil
}
