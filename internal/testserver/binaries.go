package testserver

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
)

// binaryPlaces are where packages and installers put PostgreSQL's programs, apart from PATH.
var binaryPlaces = []string{
	"/usr/lib/postgresql/*/bin", // Debian
	"/usr/pgsql-*/bin",          // the PostgreSQL project's own RPMs
	"/usr/libexec/postgresql*",  // Alpine
	"/usr/local/pgsql/bin",      // make install
	"/opt/homebrew/opt/postgresql*/bin",
	"/usr/local/opt/postgresql*/bin",
	"/Applications/Postgres.app/Contents/Versions/*/bin",
	`C:\Program Files\PostgreSQL\*\bin`,
}

// neededPrograms must all lie in one directory. Clients alone are not enough.
var neededPrograms = []string{"initdb", "postgres", "pg_ctl"}

var errNoBinaries = errors.New("no PostgreSQL server is installed here: initdb and postgres are neither in PATH nor " +
	"in the usual places; install one (apt-get install postgresql, brew install postgresql), or name the directory of " +
	"its programs in " + BinDirVariable)

// findBinaries returns the directory with this machine's PostgreSQL programs: the named one, the one in PATH, or the
// newest of the usual places.
func findBinaries() (string, error) {
	if named := os.Getenv(BinDirVariable); named != "" {
		if missing := missingPrograms(named); missing != "" {
			return "", fmt.Errorf("%s=%s: there is no %s in it", BinDirVariable, named, missing)
		}
		return named, nil
	}
	if path, err := exec.LookPath("initdb"); err == nil {
		if real, err := filepath.EvalSymlinks(path); err == nil && missingPrograms(filepath.Dir(real)) == "" {
			return filepath.Dir(real), nil
		}
		if missingPrograms(filepath.Dir(path)) == "" {
			return filepath.Dir(path), nil
		}
	}
	if found := newestBinaries(binaryPlaces); found != "" {
		return found, nil
	}
	return "", errNoBinaries
}

func newestBinaries(places []string) string {
	var found []string
	for _, place := range places {
		matches, _ := filepath.Glob(place) // the patterns are constants
		for _, match := range matches {
			if missingPrograms(match) == "" {
				found = append(found, match)
			}
		}
	}
	if len(found) == 0 {
		return ""
	}
	return slices.MaxFunc(found, func(a, b string) int { return cmp.Compare(versionIn(a), versionIn(b)) })
}

var digits = regexp.MustCompile(`\d+(\.\d+)?`)

// versionIn returns the version that a path mentions last, 0 if it mentions none.
func versionIn(path string) float64 {
	all := digits.FindAllString(path, -1)
	if len(all) == 0 {
		return 0
	}
	version, _ := strconv.ParseFloat(all[len(all)-1], 64)
	return version
}

// missingPrograms names what dir lacks, "" if nothing.
func missingPrograms(dir string) string {
	var missing []string
	for _, name := range neededPrograms {
		if _, err := os.Stat(filepath.Join(dir, executable(name))); err != nil {
			missing = append(missing, name)
		}
	}
	return strings.Join(missing, ", ")
}

func executable(name string) string {
	if runtime.GOOS == "windows" {
		return name + ".exe"
	}
	return name
}

// serverVersion returns what the server's program says about itself, e.g. "PostgreSQL 17.5".
func serverVersion(ctx context.Context, bin string) (string, error) {
	out, err := exec.CommandContext(ctx, filepath.Join(bin, executable("postgres")), "--version").Output()
	if err != nil {
		return "", fmt.Errorf("%s/postgres --version: %w", bin, err)
	}
	text := strings.TrimSpace(string(out))
	text = strings.Replace(text, "postgres (PostgreSQL)", "PostgreSQL", 1)
	return text, nil
}
