package trial

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
)

// WriteFigures writes all figures of a row: the median and the range of the rounds.
func (o *Outcome) WriteFigures(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "%s  %s\n", o.label(), o.What)
	if len(o.Servers) > 0 {
		fmt.Fprintf(t, "  servers of peers: %v\n", o.Servers)
	}
	for _, s := range o.Series {
		side := s.side()
		fmt.Fprintf(t, "  %s\t%s\t%s\t%s\t%s to %s%s\n", s.Subject, s.Role, s.Figure,
			s.Unit.format(s.Median), s.Unit.format(side.Min), s.Unit.format(side.Max), mark(s.Unsteady))
	}
	for _, m := range o.Missing {
		fmt.Fprintf(t, "  %s\tmissing: %s\n", m.Subject, m.Why)
	}
	return t.Flush()
}

// WriteTable writes one line per target of all rows.
func WriteTable(w io.Writer, outcomes []*Outcome) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "row\twhat\tours\tfloor or peer\tratio (range)\ttarget\tverdict")
	for _, o := range outcomes {
		for _, v := range o.Verdicts {
			fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n",
				o.label(), v.What, v.ours(), v.Against, v.Ratio, v.Target, v.status()+mark(v.Unsteady))
		}
	}
	return t.Flush()
}

// ours formats the judged side. A bound for every round is about the worst round.
func (v Verdict) ours() string {
	if v.Ours == nil || v.Against != nil || v.Ours.Min == v.Ours.Max {
		return v.Ours.String()
	}
	bound, worst := "at most", v.Ours.Max
	if strings.HasPrefix(v.Target, atLeast) {
		bound, worst = "at least", v.Ours.Min
	}
	return fmt.Sprintf("%s, %s %s", v.Ours, bound, v.Ours.Unit.format(worst))
}

// Figure is the figure that was judged, and what it is of.
func (v Verdict) Figure() string {
	figure := v.ours()
	if v.Ratio != nil {
		figure = v.Ours.Subject + " " + v.Ratio.String()
	}
	return figure + ", " + v.What
}

// label is the number of the row, with a mark if the run was quick.
func (o *Outcome) label() string {
	if o.Scale.Quick {
		return o.Number + " (quick)"
	}
	return o.Number
}

// mark marks what must not be quoted.
func mark(unsteady bool) string {
	if unsteady {
		return ", unsteady"
	}
	return ""
}

func (v Verdict) status() string {
	if v.Status == Missing {
		return fmt.Sprintf("%s %s", v.Status, strings.Join(v.Missing, ", "))
	}
	return string(v.Status)
}

func (s *Side) String() string {
	if s == nil {
		return "-"
	}
	return fmt.Sprintf("%s %s", s.Subject, s.Unit.format(s.Median))
}

func (s *Spread) String() string {
	if s == nil {
		return "-"
	}
	return fmt.Sprintf("%.2f (%.2f-%.2f)", s.Median, s.Min, s.Max)
}
