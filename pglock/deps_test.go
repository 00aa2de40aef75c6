package pglock_test

import (
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// TestRuntimeDependencies keeps what a user's program gets to the standard library and
// pgx with what pgx needs: testdata/deps.golden lists it.
func TestRuntimeDependencies(t *testing.T) {
	t.Parallel()
	out, err := exec.Command("go", "list", "-deps", "-f", "{{with .Module}}{{.Path}}{{end}}",
		"../pglock", "../advisory", "../leasetable", "../fencing", "../fencing/fencehttp", "../pglock/rowlock", "../pglock/sqltx", "../pglock/leader", "../pglock/once/...",
		"../pglock/schedule/...", "../pglock/gooselock", "../pglock/ui").Output()
	must(t, err)
	golden, err := os.ReadFile("../testdata/deps.golden")
	must(t, err)
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

// TestModuleRequirements keeps what a user's go mod tidy reads to pgx, golang-migrate, what they need,
// and a few small modules of the tests: testdata/modules.golden lists go.mod. A large
// one, such as a client of Docker, belongs into a module of its own, like internal/testserver/remote.
func TestModuleRequirements(t *testing.T) {
	t.Parallel()
	const file = "../testdata/modules.golden"
	text, err := os.ReadFile("../go.mod")
	must(t, err)
	var found []string
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "\t") { // in a require block: go.mod has no others
			found = append(found, strings.Fields(line)[0])
		}
	}
	slices.Sort(found)
	golden, err := os.ReadFile(file)
	must(t, err)
	if want := strings.Fields(string(golden)); !slices.Equal(found, want) {
		t.Errorf("go.mod requires\n  %s\nwant, as in %s,\n  %s", strings.Join(found, "\n  "), file, strings.Join(want, "\n  "))
	}
}

// TestLocksDoNotLinkHTTP: net/http, with TLS and HTTP/2, would make up half of a small program.
// Only fencing/fencehttp, pglock/once/oncehttp and pglock/ui import it.
// Nor do they link a fake, or the package of tests.
func TestLocksDoNotLinkHTTP(t *testing.T) {
	t.Parallel()
	for _, path := range []string{"../pglock", "../advisory", "../leasetable", "../fencing", "../pglock/leader", "../pglock/once", "../pglock/schedule"} {
		out, err := exec.Command("go", "list", "-deps", path).Output()
		must(t, err)
		for _, unwanted := range []string{"net/http", "testing", "github.com/pglock/pglock-go/pglock/internal/memory"} {
			if slices.Contains(strings.Fields(string(out)), unwanted) {
				t.Errorf("%s links %s", path, unwanted)
			}
		}
	}
	if out, err := exec.Command("go", "list", "-deps", "../fencing/fencehttp").Output(); err != nil || !slices.Contains(strings.Fields(string(out)), "net/http") {
		t.Errorf("control: fencehttp does not link net/http: %v", err)
	}
}
