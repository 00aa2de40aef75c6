package trial

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Results are the kept rows. Names of fields never change: later runs are compared with earlier ones.
type Results struct {
	*Conditions // of the rows that tell none of their own; nil if all do

	Rows []*Outcome `json:"rows"`
}

// Conditions are when, where and how thoroughly something was measured.
type Conditions struct {
	Time    time.Time `json:"time"`
	Machine Machine   `json:"machine"`
	Rounds  int       `json:"rounds"`
	Turns   int       `json:"turns"` // of each subject in a round
	TurnMS  int64     `json:"turn_ms"`
}

// At returns the conditions of a row that was measured at a scale.
func (c Conditions) At(s Scale) *Conditions {
	c.Rounds, c.Turns, c.TurnMS = s.Rounds, s.Turns, s.Turn.Milliseconds()
	return &c
}

// Machine describes the machine, without telling whose it is.
type Machine struct {
	OS       string            `json:"os"`
	Arch     string            `json:"arch"`
	Cores    int               `json:"cores"`
	Go       string            `json:"go"`
	Module   string            `json:"module"`   // the version that was measured
	Driver   string            `json:"pgx"`      // the version of pgx
	Server   string            `json:"postgres"` // its version
	Settings map[string]string `json:"settings"` // of the server, those that matter
}

// ReadResults reads what Write has written. If there is no file, there are no rows.
func ReadResults(path string) (r Results, err error) {
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return r, nil
	}
	if err != nil {
		return r, err
	}
	if err := json.Unmarshal(text, &r); err != nil {
		return r, fmt.Errorf("trial: %s: %w", path, err)
	}
	return r, nil
}

// Of returns the results with the rows that were measured on a busy machine, or with the others.
func (r Results) Of(busy bool) Results {
	r.Rows = slices.DeleteFunc(slices.Clone(r.Rows), func(o *Outcome) bool { return o.Busy != busy })
	return r
}

// With returns the results with later rows, which replace those with the same number on a machine that
// is as busy. Each of them keeps its own conditions.
func (r Results) With(later Results) Results {
	together := Results{Conditions: r.Conditions}
	for _, row := range r.Rows {
		if !slices.ContainsFunc(later.Rows, func(o *Outcome) bool { return o.Number == row.Number && o.Busy == row.Busy }) {
			together.Rows = append(together.Rows, row)
		}
	}
	for _, row := range later.Rows {
		own := *row
		own.Measured = cmp.Or(row.Measured, later.Conditions)
		together.Rows = append(together.Rows, &own)
	}
	if !slices.ContainsFunc(together.Rows, func(o *Outcome) bool { return o.Measured == nil }) {
		together.Conditions = nil
	}
	return together
}

// numbers matches a list of numbers with a line per number.
var numbers = regexp.MustCompile(`\[\n[-+.0-9eE,\s]*\]`)

// Write writes the results to a file atomically, and creates its directory. Rows are in the order of
// their numbers, and equal results make equal text.
func (r Results) Write(path string) error {
	r.Rows = slices.SortedStableFunc(slices.Values(r.Rows), func(a, b *Outcome) int {
		return cmp.Or(byNumber(a.Number, b.Number), cmp.Compare(strconv.FormatBool(a.Busy), strconv.FormatBool(b.Busy)))
	})
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	text = numbers.ReplaceAllFunc(text, func(list []byte) []byte {
		return bytes.Replace(bytes.Replace(bytes.Join(bytes.Fields(list), []byte(" ")), []byte("[ "), []byte("["), 1), []byte(" ]"), []byte("]"), 1)
	})
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	draft := path + ".new"
	if err := os.WriteFile(draft, append(text, '\n'), 0o644); err != nil {
		return err
	}
	return os.Rename(draft, path)
}

// byNumber orders the numbers of rows: B2 before B10.
func byNumber(a, b string) int {
	letters := func(number string) string { return strings.TrimRight(number, "0123456789") }
	digits := func(number string) int {
		n, _ := strconv.Atoi(strings.TrimPrefix(number, letters(number))) // 0 without any
		return n
	}
	return cmp.Or(cmp.Compare(letters(a), letters(b)), cmp.Compare(digits(a), digits(b)))
}
