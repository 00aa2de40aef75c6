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
	Target  string   `json:"target"`          // its rule
	Status  Status   `json:"status"`
	Missing []string `json:"missing,omitempty"` // the subjects

	Unsteady bool `json:"unsteady,omitempty"` // what was judged differs too much between the rounds
}

// Side is one side of a comparison.
type Side struct {
	Subject string `json:"subject"`
	Figure  string `json:"figure"`
	Unit    Unit   `json:"unit"`
	Spread
}

// Spread is the median and the range of the rounds.
type Spread struct {
	Median float64 `json:"median"`
	Min    float64 `json:"min"`
	Max    float64 `json:"max"`
}

func spread(rounds []float64) Spread {
	return Spread{median(rounds), slices.Min(rounds), slices.Max(rounds)}
}

func (s *Series) side() *Side { return &Side{s.Subject, s.Figure, s.Unit, spread(s.Rounds)} }

// judgeTarget compares the outcome with one target.
func (o *Outcome) judgeTarget(t Target) (Verdict, error) {
	v := Verdict{What: t.What, Target: t.Rule.String()}
	for _, m := range o.Missing {
		if m.Subject == t.Ours.Subject || m.Subject == t.Against.Subject {
			v.Missing = append(v.Missing, m.Subject)
		}
	}
	if len(v.Missing) > 0 {
		v.Status = Missing
		return v, nil
	}
	ours, err := o.find(t.Ours)
	if err != nil {
		return v, err
	}
	v.Ours = ours.side()
	judged := ours.Rounds
	if t.Against != (Ref{}) {
		against, err := o.find(t.Against)
		if err != nil {
			return v, err
		}
		if judged, err = ratios(ours, against); err != nil {
			return v, err
		}
		ratio := spread(judged)
		v.Against, v.Ratio = against.side(), &ratio
	}
	v.Unsteady = !steady(judged)
	switch {
	case o.Scale.Short || t.Rule == Rule{}:
		v.Status = NotJudged
	case t.Rule.holds(judged):
		v.Status = Pass
	default:
		v.Status = Miss
	}
	return v, nil
}
