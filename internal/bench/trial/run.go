package trial

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
)

// Outcome is the outcome of a row. It never changes afterwards.
type Outcome struct {
	Number   string      `json:"row"`
	What     string      `json:"what"`
	Measured *Conditions `json:"measured,omitempty"`
	Series   []*Series   `json:"figures"`
	Missing  []Absence   `json:"missing"`
	Verdicts []Verdict   `json:"targets"`
	Scale    Scale       `json:"-"`

	Servers map[string]string `json:"-"` // the versions of peers' servers, by program, for Conditions
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
	o := &Outcome{Number: row.Number, What: row.What, Missing: []Absence{}, Scale: row.adapt(scale)}
	scope := &Scope{Scale: o.Scale}
	defer func() {
		if err = errors.Join(err, scope.close()); err != nil {
			outcome, err = nil, fmt.Errorf("%s: %w", row.Number, err)
		}
	}()
	if row.Prepare != nil {
		if err := row.Prepare(ctx, scope); err != nil {
			return nil, err
		}
	}
	contestants, err := o.open(ctx, row.Subjects, scope)
	if err != nil {
		return nil, err
	}
	first := -1 // the warm-up
	if row.Once {
		first = 0
	}
	o.Servers = scope.servers
	for round := first; round < o.Scale.Rounds; round++ {
		if err := takeTurns(ctx, contestants, max(round, 0), o.Scale); err != nil {
			return nil, err
		}
		for _, c := range contestants {
			figures := c.meter.Figures()
			if round < 0 {
				continue
			}
			if err := c.record(figures); err != nil {
				return nil, fmt.Errorf("%s: %w", c.Name, err)
			}
		}
	}
	return o, o.judge(contestants, row.Targets)
}

// open opens the subjects and records the missing ones.
func (o *Outcome) open(ctx context.Context, subjects []Subject, scope *Scope) (contestants []*contestant, err error) {
	for _, s := range subjects {
		meter, err := s.Open(ctx, scope)
		switch {
		case errors.Is(err, ErrMissing):
			o.Missing = append(o.Missing, Absence{Subject: s.Name, Why: err.Error()})
		case err != nil:
			return nil, fmt.Errorf("open %s: %w", s.Name, err)
		default:
			contestants = append(contestants, &contestant{Subject: s, meter: meter})
		}
	}
	return contestants, nil
}

// takeTurns runs one round. The order changes from turn to turn, so that no subject always pays for what
// the same other one left behind.
func takeTurns(ctx context.Context, contestants []*contestant, round int, scale Scale) error {
	runtime.GC()
	for turn := range scale.Turns {
		for i := range contestants {
			c := contestants[(i+turn+round)%len(contestants)]
			if err := c.meter.Turn(ctx, scale.Turn); err != nil {
				return fmt.Errorf("%s: %w", c.Name, err)
			}
		}
	}
	return nil
}

// record keeps the figures of a round.
func (c *contestant) record(figures []Figure) error {
	if c.series == nil {
		for _, f := range figures {
			c.series = append(c.series, &Series{Subject: c.Name, Role: c.Role, Figure: f.Name, Unit: f.Unit})
		}
	}
	for i, f := range figures {
		if math.IsNaN(f.Value) || math.IsInf(f.Value, 0) {
			return fmt.Errorf("trial: %s is no number: nothing was measured in a round", f.Name)
		}
		c.series[i].Rounds = append(c.series[i].Rounds, f.Value)
	}
	return nil
}

// judge computes the medians and judges the targets.
func (o *Outcome) judge(contestants []*contestant, targets []Target) error {
	for _, c := range contestants {
		for _, s := range c.series {
			s.Median, s.Unsteady = median(s.Rounds), !steady(s.Rounds)
		}
		o.Series = append(o.Series, c.series...)
	}
	for _, target := range targets {
		v, err := o.judgeTarget(target)
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
	return nil, fmt.Errorf("trial: no figure %q of %q", r.Figure, r.Subject)
}
