package trial

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Row is one promise.
type Row struct {
	Number string // as in the design, "P1"
	What   string // is measured, in a few words

	// Prepare makes what the subjects share, a server or a table. It may be nil.
	Prepare func(ctx context.Context, s *Scope) error

	Subjects []Subject
	Targets  []Target

	// Once: each subject is measured in one long turn, whose length is its own affair.
	Once bool

	// Growth: the subjects are the same thing at several sizes, and are drawn as lines over
	// them. It may be nil.
	Growth *Growth
}

// Growth tells how a row grows.
type Growth struct {
	With    string   `json:"with"`    // more of what, the name of the axis
	Figures []string `json:"figures"` // that are drawn, a line each, all in the same unit
}

// Subject is one thing that is measured.
type Subject struct {
	Name string // unique in its row
	Role Role
	Size float64 // on the axis of the row's Growth, above 0

	// Open makes it ready. Where it is not installed on this machine, the error
	// wraps ErrMissing and says what to install.
	Open func(ctx context.Context, s *Scope) (Meter, error)
}

// Meter exercises a subject and measures it.
type Meter interface {
	// Turn exercises it for about d, and adds to what was measured. What it does
	// before and after, such as clearing a table, it does not count.
	Turn(ctx context.Context, d time.Duration) error

	// Figures returns what was measured in the turns since the last call: the same
	// figures in the same order each time.
	Figures() []Figure
}

// Role tells what a subject is in the comparison.
type Role string

// The roles.
const (
	Ours  Role = "ours"
	Floor Role = "floor" // the least that any implementation must do
	Peer  Role = "peer"  // what people would use instead
)

// ErrMissing: a subject is not installed on this machine.
var ErrMissing = errors.New("trial: missing")

// Scale is how thoroughly a row is measured.
type Scale struct {
	Rounds int
	Turns  int           // of each subject in a round
	Turn   time.Duration // the length of one
	Short  bool          // see that it runs, and don't judge
}

// Scope is the time between preparing a row and being done with it.
type Scope struct {
	Scale
	closers []func() error
}

// Defer has fn called when the row is done, the last first.
func (s *Scope) Defer(fn func() error) { s.closers = append(s.closers, fn) }

func (s *Scope) close() error {
	var errs []error
	for i := len(s.closers) - 1; i >= 0; i-- {
		errs = append(errs, s.closers[i]())
	}
	s.closers = nil
	return errors.Join(errs...)
}

// check refuses a row that contradicts itself, before anything is measured.
func (r Row) check() error {
	known := map[string]bool{}
	for _, s := range r.Subjects {
		if known[s.Name] {
			return fmt.Errorf("trial: %s has two subjects %q", r.Number, s.Name)
		}
		known[s.Name] = true
	}
	for _, t := range r.Targets {
		for _, ref := range t.refs() {
			if !known[ref.Subject] {
				return fmt.Errorf("trial: a target of %s names the subject %q, which it has not", r.Number, ref.Subject)
			}
		}
	}
	return nil
}
