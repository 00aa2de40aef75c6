package testserver

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	"github.com/pglock/pglock-go/internal/testserver/process"
)

// state is what a supervisor tells the processes that wait for its server, and whoever has to clean up after it.
type state struct {
	Supervisor process.ID
	Server     *Shared `json:",omitempty"` // set when it accepts connections
	Error      string  `json:",omitempty"` // set when there is no server and there won't be one
}

const stateName = "state.json"

func readState(dir string) (state, error) {
	var s state
	text, err := os.ReadFile(filepath.Join(dir, stateName))
	if err != nil {
		return s, err
	}
	if err := json.Unmarshal(text, &s); err != nil {
		return s, fmt.Errorf("testserver: %s: %w", filepath.Join(dir, stateName), err)
	}
	return s, nil
}

// write replaces the file as a whole: a reader sees the old state or the new one. It holds a password, so nobody else
// may read it.
func (s state) write(dir string) error {
	text, err := json.MarshalIndent(s, "", "\t")
	if err != nil {
		return fmt.Errorf("testserver: %w", err)
	}
	draft := filepath.Join(dir, stateName+".new")
	if err := os.WriteFile(draft, text, 0o600); err != nil {
		return fmt.Errorf("testserver: %w", err)
	}
	if err := os.Rename(draft, filepath.Join(dir, stateName)); err != nil {
		return fmt.Errorf("testserver: %w", err)
	}
	return nil
}
