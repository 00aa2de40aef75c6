package trial

import (
	"encoding/json"
	"os"
	"path/filepath"
	"time"
)

// Results are one run of all rows, as they are kept. Names of fields stay as they are:
// later runs are compared with earlier ones.
type Results struct {
	Time    time.Time  `json:"time"`
	Machine Machine    `json:"machine"`
	Rounds  int        `json:"rounds"`
	Turns   int        `json:"turns"` // of each subject in a round
	TurnMS  int64      `json:"turn_ms"`
	Rows    []*Outcome `json:"rows"`
}

// Machine is what a reader must know about where it ran. It does not say whose
// machine that is.
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

// Write writes the results to a file, whole or not at all, and makes its directory.
func (r Results) Write(path string) error {
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	draft := path + ".new"
	if err := os.WriteFile(draft, append(text, '\n'), 0o644); err != nil {
		return err
	}
	return os.Rename(draft, path)
}
