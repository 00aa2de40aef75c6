package trial

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// TestResultsKeepTheirNames holds the names of the fields, which later runs are
// compared by.
func TestResultsKeepTheirNames(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "new", "results.json")
	r := Results{Time: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), Machine: Machine{Cores: 2}, Rounds: 3, Turns: 1, Rows: []*Outcome{judged(t)}}
	for range 2 { // the second replaces the first
		if err := r.Write(path); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Time    string         `json:"time"`
		Machine map[string]any `json:"machine"`
		Rows    []struct {
			Row     string           `json:"row"`
			Figures []map[string]any `json:"figures"`
			Targets []map[string]any `json:"targets"`
			Missing []map[string]any `json:"missing"`
		} `json:"rows"`
	}
	if err := json.Unmarshal(text, &file); err != nil {
		t.Fatal(err)
	}
	row := file.Rows[0]
	for name, has := range map[string]bool{
		"time":            file.Time == "2026-01-02T03:04:05Z",
		"machine.cores":   file.Machine["cores"] == 2.0,
		"row":             row.Row == "P0",
		"figures.median":  row.Figures[0]["median"] == 31.0,
		"figures.rounds":  len(row.Figures[0]["rounds"].([]any)) == 3,
		"targets.status":  row.Targets[0]["status"] == "PASS",
		"targets.ratio":   row.Targets[0]["ratio"].(map[string]any)["median"] == 3.1,
		"targets.missing": row.Targets[2]["missing"].([]any)[0] == "redis",
		"missing.subject": row.Missing[0]["subject"] == "redis",
	} {
		if !has {
			t.Errorf("%s is not there, or has another value:\n%s", name, text)
		}
	}
}
