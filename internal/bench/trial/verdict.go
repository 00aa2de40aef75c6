package trial

import "slices"

// Status is the status of a target.
type Status string

// The statuses.
const (
	Pass      Status = "PASS"
	Miss      Status = "MISS"
	Missing   Status = "MISSING" // a subject is not installed here, so there is no figure
	NotJudged Status = "-"       // the run was too short to tell, or there is no bound
)

// Verdict is the outcome of a target.
type Verdict struct {
	What    string   `json:"what"`
	Ours    *Side    `json:"ours,omitempty"`
	Against *Side    `json:"against,omitempty"`
	Ratio   *Spread  `json:"ratio,omitempty"` // of ours to against, if there is one
	Target  Rule     `json:"target"`
	Status  Status   `json:"status"`
	Missing []string `json:"missing,omitempty"` // the subjects

	Unsteady bool `json:"unsteady,omitempty"` // what was judged differs too much between the rounds
}

// Side is one side of a comparison, with its median.
type Side struct {
	Subject string  `json:"subject"`
	Figure  string  `json:"figure"`
	Unit    Unit    `json:"unit"`
	Median  float64 `json:"median"`
	Min     float64 `json:"min"`
	Max     float64 `json:"max"`
}

// Spread is the median and the range of the rounds.
type Spread struct {
	Median float64 `json:"median"`
	Min    float64 `json:"min"`
	Max    float64 `json:"max"`
}

// judgeTarget compares the outcome with one target.
func (o *Outcome) judgeTarget(t Target) (Verdict, error) {
	v := Verdict{What: t.What, Target: t.Rule, Missing: o.missingIn(t)}
	if len(v.Missing) > 0 {
		v.Status = Missing
		return v, nil
	}
	var best []float64
	for _, candidate := range t.Ours {
		values, ours, against, err := t.compare(o, candidate)
		if err != nil {
			return v, err
		}
		if best != nil && !t.Rule.better(t.Rule.deciding(values), t.Rule.deciding(best)) {
			continue
		}
		best = values
		v.Ours, v.Against = ours.side(), against.side()
	}
	if v.Against != nil {
		v.Ratio = &Spread{Median: median(best), Min: slices.Min(best), Max: slices.Max(best)}
	}
	v.Unsteady = !steady(best)
	switch {
	case o.Scale.Short || t.Rule.none:
		v.Status = NotJudged
	case t.Rule.holds(t.Rule.deciding(best)):
		v.Status = Pass
	default:
		v.Status = Miss
	}
	return v, nil
}

// missingIn returns the missing subjects that the target needs.
func (o *Outcome) missingIn(t Target) []string {
	var missing []string
	for _, m := range o.Missing {
		if slices.ContainsFunc(t.refs(), func(r Ref) bool { return r.Subject == m.Subject }) {
			missing = append(missing, m.Subject)
		}
	}
	return missing
}

func (s *Series) side() *Side {
	if s == nil {
		return nil
	}
	return &Side{
		Subject: s.Subject, Figure: s.Figure, Unit: s.Unit,
		Median: s.Median, Min: slices.Min(s.Rounds), Max: slices.Max(s.Rounds),
	}
}
