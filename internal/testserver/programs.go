package testserver

import (
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

var (
	// programPlaces are where packages and installers put PostgreSQL's programs, apart from PATH.
	programPlaces = []string{
		"/usr/lib/postgresql/*/bin", // Debian
		"/usr/pgsql-*/bin",          // the PostgreSQL project's own RPMs
		"/usr/libexec/postgresql*",  // Alpine
		"/usr/local/pgsql/bin",      // make install
		"/opt/homebrew/opt/postgresql*/bin",
		"/usr/local/opt/postgresql*/bin",
		"/Applications/Postgres.app/Contents/Versions/*/bin",
		`C:\Program Files\PostgreSQL\*\bin`,
	}
	// neededPrograms must all be in one directory.
	neededPrograms = []string{"initdb", "postgres", "pg_ctl"}

	// ErrNoPrograms is returned by Start when this machine lacks a PostgreSQL server's programs.
	ErrNoPrograms = errors.New("no PostgreSQL server is installed here: initdb, postgres and pg_ctl are neither in PATH " +
		"nor in the usual places; install them (testdata/setup.sh does), or name their directory in " + BinDirVariable)
	// ErrNoProgram is returned by Program and Standby when one of PostgreSQL's programs is missing.
	ErrNoProgram = errors.New("this PostgreSQL program is missing")

	versionPattern = regexp.MustCompile(`\d+(\.\d+)?`)
)

// findPrograms returns the directory of this machine's PostgreSQL: the named one, the one in PATH,
// or the newest in the usual places.
func findPrograms() (string, error) {
	if named := os.Getenv(BinDirVariable); named != "" {
		if missing := lacking(named, neededPrograms); missing != "" {
			return "", fmt.Errorf("%s=%s: there is no %s in it", BinDirVariable, named, missing)
		}
		return named, nil
	}
	if path, err := exec.LookPath("initdb"); err == nil {
		if real, err := filepath.EvalSymlinks(path); err == nil {
			path = real
		}
		if lacking(filepath.Dir(path), neededPrograms) == "" {
			return filepath.Dir(path), nil
		}
	}
	if found := newestWith(programPlaces, neededPrograms); found != "" {
		return found, nil
	}
	return "", ErrNoPrograms
}

// Program returns the path of one of PostgreSQL's programs, such as psql or pg_dump: the newest in
// the usual places, the one in the directory that BinDirVariable names, or the one in PATH. The
// newest comes first because pg_dump refuses a server that is newer than itself.
func Program(name string) (string, error) {
	for _, dir := range []string{newestWith(programPlaces, []string{name}), os.Getenv(BinDirVariable)} {
		if dir != "" && lacking(dir, []string{name}) == "" {
			return filepath.Join(dir, executable(name)), nil
		}
	}
	path, err := exec.LookPath(name)
	if err != nil {
		return "", fmt.Errorf("%w: %w: testdata/setup.sh installs it", ErrNoProgram, err)
	}
	return path, nil
}

// newestWith returns the newest of the places that has all these programs, or "".
func newestWith(places, programs []string) string {
	newest := ""
	for _, place := range places {
		matches, _ := filepath.Glob(place) // the patterns are constants
		for _, match := range matches {
			if lacking(match, programs) == "" && (newest == "" || versionIn(match) > versionIn(newest)) {
				newest = match
			}
		}
	}
	return newest
}

// versionIn returns the last version in a path, or 0.
func versionIn(path string) float64 {
	all := versionPattern.FindAllString(path, -1)
	if len(all) == 0 {
		return 0
	}
	version, _ := strconv.ParseFloat(all[len(all)-1], 64)
	return version
}

// lacking names the programs that dir lacks, or "".
func lacking(dir string, programs []string) string {
	missing := slices.DeleteFunc(slices.Clone(programs), func(name string) bool {
		_, err := os.Stat(filepath.Join(dir, executable(name)))
		return err == nil
	})
	return strings.Join(missing, ", ")
}

func executable(name string) string {
	if runtime.GOOS == "windows" {
		return name + ".exe"
	}
	return name
}
