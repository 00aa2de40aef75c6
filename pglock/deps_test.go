package pglock_test

import (
	"os"
	"os/exec"
	"strings"
	"testing"
)

// TestRuntimeDependencies keeps what a user's program gets to the standard library and
// pgx with what pgx needs: testdata/deps.golden lists it.
func TestRuntimeDependencies(t *testing.T) {
	t.Parallel()
	out, err := exec.Command("go", "list", "-deps", "-f", "{{with .Module}}{{.Path}}{{end}}",
		"../pglock", "../advisory", "../leasetable", "../fencing", "../pglock/rowlock", "../pglock/sqltx",
		"../pglock/ticks", "../pglock/gocronlock", "../pglock/cronlock", "../pglock/gooselock").Output()
	if err != nil {
		t.Fatal(err)
	}
	golden, err := os.ReadFile("../testdata/deps.golden")
	if err != nil {
		t.Fatal(err)
	}
	allowed := map[string]bool{}
	for _, path := range strings.Fields(string(golden)) {
		allowed[path] = true
	}
	found := map[string]bool{}
	for _, path := range strings.Fields(string(out)) {
		found[path] = true
		if !allowed[path] {
			t.Errorf("module %s is a new dependency of the runtime packages", path)
		}
	}
	for path := range allowed {
		if !found[path] {
			t.Errorf("module %s is in the list and not needed any more", path)
		}
	}
}
