package trial

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
)

// Outcome is the outcome of a row. It is complete when Run returns it.
type Outcome struct {
	Number   string      `json:"row"`
	What     string      `json:"what"`
	Measured *Conditions `json:"measured,omitempty"` // nil: as the results that it is part of
	Growth   *Growth     `json:"growth,omitempty"`
	Series   []*Series   `json:"figures"`
	Missing  []Absence   `json:"missing"`
	Verdicts []Verdict   `json:"targets"`
	Short    bool        `json:"-"`
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

// Run measures a row and judges it. After an error there is no outcome. Everything that was opened is
// closed when it returns. ctx ends it between operations.
func Run(ctx context.Context, row Row, scale Scale) (outcome *Outcome, err error) {
	if err := row.check(); err != nil {
		return nil, err
	}
	first := -1 // which warms up
	if row.Once {
		scale.Rounds, scale.Turns, first = 1, 1, 0
	}
	scope := &Scope{Scale: scale}
	defer func() {
		if closing := scope.close(); closing != nil {
			outcome, err = nil, errors.Join(err, fmt.Errorf("%s: closing: %w", row.Number, closing))
		}
	}()
	if row.Prepare != nil {
		if err := row.Prepare(ctx, scope); err != nil {
			return nil, fmt.Errorf("%s: %w", row.Number, err)
		}
	}
	outcome = &Outcome{Number: row.Number, What: row.What, Growth: row.Growth, Missing: []Absence{}, Short: scale.Short}
	contestants, err := outcome.open(ctx, row, scope)
	if err != nil {
		return nil, err
	}
	for round := first; round < scale.Rounds; round++ {
		if err := takeTurns(ctx, contestants, scale); err != nil {
			return nil, fmt.Errorf("%s: %w", row.Number, err)
		}
		for _, c := range contestants {
			if err := c.record(c.meter.Figures(), round >= 0); err != nil {
				return nil, fmt.Errorf("%s: %s: %w", row.Number, c.Name, err)
			}
		}
	}
	return outcome, outcome.judge(row, contestants)
}

// open opens the subjects and records the missing ones.
func (o *Outcome) open(ctx context.Context, row Row, scope *Scope) ([]*contestant, error) {
	var contestants []*contestant
	for _, s := range row.Subjects {
		meter, err := s.Open(ctx, scope)
		switch {
		case errors.Is(err, ErrMissing):
			o.Missing = append(o.Missing, Absence{Subject: s.Name, Why: err.Error()})
		case err != nil:
			return nil, fmt.Errorf("%s: open %s: %w", row.Number, s.Name, err)
		default:
			contestants = append(contestants, &contestant{Subject: s, meter: meter})
		}
	}
	return contestants, nil
}

// takeTurns runs one round. The order changes from turn to turn, so that no subject always pays for what
// the same other one left behind.
func takeTurns(ctx context.Context, contestants []*contestant, scale Scale) error {
	runtime.GC()
	for turn := range scale.Turns {
		for i := range contestants {
			c := contestants[(i+turn)%len(contestants)]
			if err := c.meter.Turn(ctx, scale.Turn); err != nil {
				return fmt.Errorf("%s: %w", c.Name, err)
			}
		}
	}
	return nil
}

// record keeps the figures of a round, if it counts.
func (c *contestant) record(figures []Figure, counts bool) error {
	if !counts {
		return nil
	}
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

// judge computes the medians and judges the targets.
func (o *Outcome) judge(row Row, contestants []*contestant) error {
	for _, c := range contestants {
		for _, s := range c.series {
			s.Median = median(s.Rounds)
			o.Series = append(o.Series, s)
		}
	}
	for _, t := range row.Targets {
		v, err := o.judgeTarget(t)
		if err != nil {
			return err
		}
		o.Verdicts = append(o.Verdicts, v)
	}
	return nil
}

func (o *Outcome) find(r Ref) (*Series, error) {
	for _, s := range o.Series {
		if s.Subject == r.Subject && s.Figure == r.Figure {
			return s, nil
		}
	}
	return nil, fmt.Errorf("trial: %s has no figure %q of %q", o.Number, r.Figure, r.Subject)
}
