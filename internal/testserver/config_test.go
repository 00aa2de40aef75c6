package testserver

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestReadConfig(t *testing.T) {
	all := []Way{WayLocal, WayDocker}
	for _, test := range []struct {
		name  string
		env   map[string]string
		ways  []Way
		image string
		fails string
	}{
		{name: "nothing set", ways: all, image: DefaultImage},
		{name: "a server", env: map[string]string{URLVariable: "postgres://x"}, ways: []Way{WayURL}, image: DefaultImage},
		{name: "an image", env: map[string]string{ImageVariable: "mine"}, ways: []Way{WayDocker}, image: "mine"},
		{name: "a server and an image", env: map[string]string{URLVariable: "postgres://x", ImageVariable: "mine"}, ways: []Way{WayURL}, image: "mine"},
		{name: "forced local", env: map[string]string{ServerVariable: "local", URLVariable: "postgres://x"}, ways: []Way{WayLocal}, image: DefaultImage},
		{name: "forced docker", env: map[string]string{ServerVariable: "docker"}, ways: []Way{WayDocker}, image: DefaultImage},
		{name: "forced url without one", env: map[string]string{ServerVariable: "url"}, fails: URLVariable},
		{name: "forced nonsense", env: map[string]string{ServerVariable: "magic"}, fails: "must be url, docker or local"},
		{name: "settings", env: map[string]string{SettingsVariable: " work_mem=1MB search_path= "}, ways: all, image: DefaultImage},
		{name: "settings without a value", env: map[string]string{SettingsVariable: "work_mem"}, fails: "name=value"},
		{name: "patience", env: map[string]string{PatienceVariable: "soon"}, fails: PatienceVariable},
	} {
		t.Run(test.name, func(t *testing.T) {
			for _, variable := range []string{URLVariable, ServerVariable, ImageVariable, PatienceVariable, SettingsVariable} {
				t.Setenv(variable, test.env[variable])
			}
			c, err := readConfig()
			if test.fails != "" {
				if err == nil || !strings.Contains(err.Error(), test.fails) {
					t.Fatalf("got %v, want an error about %q", err, test.fails)
				}
				return
			}
			if err != nil || !slices.Equal(c.ways, test.ways) || c.image != test.image {
				t.Errorf("got %+v, %v", c, err)
			}
			if test.env[SettingsVariable] != "" && (c.settings["work_mem"] != "1MB" || c.settings["max_connections"] == "" || len(c.settings) != len(sharedSettings)+2) {
				t.Errorf("settings %v", c.settings)
			}
		})
	}
}

func TestNewestBinaries(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	add := func(path string, programs ...string) string {
		dir := filepath.Join(root, path)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		for _, program := range programs {
			if err := os.WriteFile(filepath.Join(dir, executable(program)), nil, 0o755); err != nil {
				t.Fatal(err)
			}
		}
		return dir
	}
	add("9.6/bin", neededPrograms...)
	newest := add("17/bin", neededPrograms...)
	add("10/bin", neededPrograms...)
	add("18/bin", "pg_ctl") // a client only
	if got := newestWith([]string{filepath.Join(root, "*", "bin"), filepath.Join(root, "none")}, neededPrograms); got != newest {
		t.Errorf("got %q, want %q", got, newest)
	}
}
