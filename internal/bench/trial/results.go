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
	"time"
)

// Results are the kept rows. Names of fields never change: later runs are compared with earlier ones.
type Results struct {
	Rows []*Outcome `json:"rows"`
}

// Conditions are when, where and how thoroughly a row was measured.
type Conditions struct {
	Time    time.Time `json:"time"`
	Machine Machine   `json:"machine"`
	Rounds  int       `json:"rounds"`
	Turns   int       `json:"turns"` // of each subject in a round
	TurnMS  int64     `json:"turn_ms"`

	Servers map[string]string `json:"servers,omitempty"` // the versions of peers' servers, by program
}

// Machine describes the machine, without telling whose it is.
type Machine struct {
	OS       string            `json:"os"`
	Arch     string            `json:"arch"`
	Cores    int               `json:"cores"`
	Go       string            `json:"go"`
	Module   string            `json:"module"`            // the version that was measured
	Driver   string            `json:"pgx"`               // the version of pgx
	Server   string            `json:"postgres"`          // its version
	Settings map[string]string `json:"settings"`          // of the server, those that matter
	Clients  map[string]string `json:"clients,omitempty"` // the versions of peers' client libraries, by module
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

// With returns the results with later rows, which replace those with the same number.
func (r Results) With(later Results) Results {
	kept := slices.DeleteFunc(slices.Clone(r.Rows), func(row *Outcome) bool {
		return slices.ContainsFunc(later.Rows, func(o *Outcome) bool { return o.Number == row.Number })
	})
	return Results{append(kept, later.Rows...)}
}

// numbers matches a list of numbers with a line per number.
var numbers = regexp.MustCompile(`\[\n[-+.0-9eE,\s]*\]`)

// Write writes the results to a file atomically, and creates its directory. Rows are in the order of
// their numbers, and equal results make equal text.
func (r Results) Write(path string) error {
	r.Rows = slices.SortedStableFunc(slices.Values(r.Rows), func(a, b *Outcome) int { return byNumber(a.Number, b.Number) })
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
	return cmp.Or(cmp.Compare(a[:1], b[:1]), cmp.Compare(len(a), len(b)), cmp.Compare(a, b))
}
