package trial

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"slices"
	"sync"
)

// Outcome is the outcome of a row. It never changes afterwards.
type Outcome struct {
	Number   string      `json:"row"`
	What     string      `json:"what"`
	Busy     bool        `json:"busy,omitempty"`     // measured beside a process that burns a core
	Measured *Conditions `json:"measured,omitempty"` // nil: as the results that it is part of
	Growth   *Growth     `json:"growth,omitempty"`
	Series   []*Series   `json:"figures"`
	Missing  []Absence   `json:"missing"`
	Verdicts []Verdict   `json:"targets"`
	Scale    Scale       `json:"-"` // with the rounds that are complete
}

// Absence is a subject that could not be measured, and why.
type Absence struct {
	Subject string `json:"subject"`
	Why     string `json:"why"`
}

// contestant is an open subject.
type contestant struct {
	Subject
	meter  Meter
	series []*Series
}

// Trial is the measurement of one row. Step and SoFar may be called while it runs.
type Trial struct {
	row   Row
	scale Scale

	mu          sync.Mutex // never held while something is measured
	step        string
	contestants []*contestant
	missing     []Absence
	rounds      int // complete, without the warm-up
}

// New returns the measurement of a row, which has not begun.
func New(row Row, scale Scale) *Trial {
	return &Trial{row: row, scale: row.adapt(scale), step: "preparation", missing: []Absence{}}
}

// Run measures a row and judges it. After an error there is no outcome. Everything that was opened is
// closed when it returns. ctx ends it between operations.
func Run(ctx context.Context, row Row, scale Scale) (*Outcome, error) {
	return New(row, scale).Run(ctx)
}

// Run is the function Run. It is called once.
func (t *Trial) Run(ctx context.Context) (outcome *Outcome, err error) {
	if err := t.row.check(); err != nil {
		return nil, err
	}
	scope := &Scope{Scale: t.scale}
	defer func() {
		if closing := scope.close(); closing != nil {
			outcome, err = nil, errors.Join(err, fmt.Errorf("%s: closing: %w", t.row.Number, closing))
		}
	}()
	if t.row.Prepare != nil {
		if err := t.row.Prepare(ctx, scope); err != nil {
			return nil, fmt.Errorf("%s: %w", t.row.Number, err)
		}
	}
	if err := t.open(ctx, scope); err != nil {
		return nil, err
	}
	first := -1 // the warm-up
	if t.row.Once {
		first = 0
	}
	for round := first; round < t.scale.Rounds; round++ {
		if err := t.takeTurns(ctx, round); err != nil {
			return nil, fmt.Errorf("%s: %w", t.row.Number, err)
		}
		if err := t.record(round); err != nil {
			return nil, fmt.Errorf("%s: %w", t.row.Number, err)
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.judge()
}

// Step says in a few words what is going on.
func (t *Trial) Step() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.step
}

func (t *Trial) enter(format string, args ...any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.step = fmt.Sprintf(format, args...)
}

// SoFar returns the outcome of the complete rounds, or nil if there is none.
func (t *Trial) SoFar() (*Outcome, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.rounds == 0 {
		return nil, nil
	}
	return t.judge()
}

// open opens the subjects and records the missing ones.
func (t *Trial) open(ctx context.Context, scope *Scope) error {
	for _, s := range t.row.Subjects {
		t.enter("preparation of %s", s.Name)
		meter, err := s.Open(ctx, scope)
		if err != nil && !errors.Is(err, ErrMissing) {
			return fmt.Errorf("%s: open %s: %w", t.row.Number, s.Name, err)
		}
		t.mu.Lock()
		if err != nil {
			t.missing = append(t.missing, Absence{Subject: s.Name, Why: err.Error()})
		} else {
			t.contestants = append(t.contestants, &contestant{Subject: s, meter: meter})
		}
		t.mu.Unlock()
	}
	return nil
}

// takeTurns runs one round. The order changes from turn to turn, so that no subject always pays for what
// the same other one left behind.
func (t *Trial) takeTurns(ctx context.Context, round int) error {
	runtime.GC()
	for turn := range t.scale.Turns {
		for i := range t.contestants {
			c := t.contestants[(i+turn+max(round, 0))%len(t.contestants)]
			if round < 0 {
				t.enter("warm-up: %s", c.Name)
			} else {
				t.enter("round %d of %d: %s", round+1, t.scale.Rounds, c.Name)
			}
			if err := c.meter.Turn(ctx, t.scale.Turn); err != nil {
				return fmt.Errorf("%s: %w", c.Name, err)
			}
		}
	}
	return nil
}

// record keeps the figures of a round, unless it is the warm-up.
func (t *Trial) record(round int) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, c := range t.contestants {
		figures := c.meter.Figures()
		if round < 0 {
			continue
		}
		if err := c.record(figures); err != nil {
			return fmt.Errorf("%s: %w", c.Name, err)
		}
	}
	t.rounds = round + 1
	return nil
}

func (c *contestant) record(figures []Figure) error {
	if c.series == nil {
		for _, f := range figures {
			c.series = append(c.series, &Series{Subject: c.Name, Role: c.Role, Size: c.Size, Figure: f.Name, Unit: f.Unit})
		}
	}
	if len(figures) != len(c.series) {
		return fmt.Errorf("trial: %d figures after %d", len(figures), len(c.series))
	}
	for i, f := range figures {
		switch s := c.series[i]; {
		case f.Name != s.Figure || f.Unit != s.Unit:
			return fmt.Errorf("trial: figure %q where %q was", f.Name, s.Figure)
		case math.IsNaN(f.Value) || math.IsInf(f.Value, 0):
			return fmt.Errorf("trial: %s is no number: nothing was measured in a round", f.Name)
		default:
			s.Rounds = append(s.Rounds, f.Value)
		}
	}
	return nil
}

// judge computes the medians and judges the targets. The caller holds the mutex.
func (t *Trial) judge() (*Outcome, error) {
	o := &Outcome{
		Number: t.row.Number, What: t.row.What, Busy: t.scale.Busy, Growth: t.row.Growth,
		Missing: slices.Clone(t.missing), Scale: t.scale,
	}
	o.Scale.Rounds = t.rounds
	for _, c := range t.contestants {
		for _, s := range c.series {
			own := *s // later rounds go into the other one
			own.Rounds = slices.Clone(s.Rounds)
			own.Median, own.Unsteady = median(own.Rounds), !steady(own.Rounds)
			o.Series = append(o.Series, &own)
		}
	}
	for _, target := range t.row.Targets {
		v, err := o.judgeTarget(target)
		if err != nil {
			return nil, err
		}
		o.Verdicts = append(o.Verdicts, v)
	}
	return o, nil
}

func (o *Outcome) find(r Ref) (*Series, error) {
	for _, s := range o.Series {
		if s.Subject == r.Subject && s.Figure == r.Figure {
			return s, nil
		}
	}
	return nil, fmt.Errorf("trial: %s has no figure %q of %q", o.Number, r.Figure, r.Subject)
}
