package trial

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestResultsKeepTheirNames holds the names of the fields, which later runs are
// compared by.
func TestResultsKeepTheirNames(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "new", "results.json")
	o := judged(t)
	o.Measured = &Conditions{Time: time.Date(2026, 1, 2, 3, 0, 0, 0, time.UTC), Machine: Machine{Cores: 2, Clients: map[string]string{"redislock": "v1"}}, Rounds: 3, Turns: 1, Servers: o.Servers}
	r := Results{Rows: []*Outcome{o}}
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
		Rows []struct {
			Row      string `json:"row"`
			Measured struct {
				Time    string         `json:"time"`
				Machine map[string]any `json:"machine"`
				Servers map[string]any `json:"servers"`
			} `json:"measured"`
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
		"measured.time":   row.Measured.Time == "2026-01-02T03:00:00Z",
		"machine.cores":   row.Measured.Machine["cores"] == 2.0,
		"machine.clients": row.Measured.Machine["clients"].(map[string]any)["redislock"] == "v1",
		"servers":         row.Measured.Servers["redis"] == "8.6.3",
		"row":             row.Row == "B0",
		"figures.median":  row.Figures[0]["median"] == 31.0,
		"figures.rounds":  len(row.Figures[0]["rounds"].([]any)) == 3,
		"targets.status":  row.Targets[0]["status"] == "PASS",
		"targets.target":  row.Targets[0]["target"] == "≤ 4" && row.Targets[3]["target"] == "≤ 31 in every round",
		"targets.ratio":   row.Targets[0]["ratio"].(map[string]any)["median"] == 3.1,
		"targets.missing": row.Targets[2]["missing"].([]any)[0] == "redis",
		"missing.subject": row.Missing[0]["subject"] == "redis",
	} {
		if !has {
			t.Errorf("%s is not there, or has another value:\n%s", name, text)
		}
	}
}

func TestTheSameResultsMakeTheSameText(t *testing.T) {
	t.Parallel()
	first, second := filepath.Join(t.TempDir(), "first"), filepath.Join(t.TempDir(), "second")
	o := judged(t)
	o.Number, o.Measured = "B2", &Conditions{Rounds: 3}
	r := Results{}.With(Results{Rows: []*Outcome{o, {Number: "B1"}}})
	if err := r.Write(first); err != nil {
		t.Fatal(err)
	}
	again, err := ReadResults(first)
	if err != nil {
		t.Fatal(err)
	}
	if err := again.Write(second); err != nil {
		t.Fatal(err)
	}
	a, _ := os.ReadFile(first)
	b, _ := os.ReadFile(second)
	if string(a) != string(b) {
		t.Errorf("written\n%s\nread and written again\n%s", a, b)
	}
	if line := `"rounds": [30, 31, 32]`; !strings.Contains(string(a), line) {
		t.Errorf("no line %s in\n%s", line, a)
	}
}

func TestResultsThatAreNotThereAndThatAreBroken(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "results.json")
	if r, err := ReadResults(path); err != nil || len(r.Rows) != 0 {
		t.Errorf("no file: %+v, %v", r, err)
	}
	for _, text := range []string{"{", `{"rows": [{"row": 1}]}`} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := ReadResults(path); err == nil {
			t.Errorf("%s was read", text)
		}
	}
}
