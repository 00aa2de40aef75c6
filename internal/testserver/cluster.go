package testserver

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
)

// A cluster is what initdb makes: a data directory with its configuration.

const (
	superuser = "postgres"
	database  = "postgres"
	dataName  = "data" // of the data directory
)

// fastSettings give up what only a crash of the machine would need.
var fastSettings = map[string]string{
	"fsync":            "off",
	"full_page_writes": "off",
}

// commonSettings hold for every server of ours, unless Options.Settings say otherwise.
var commonSettings = map[string]string{
	// A killed server leaves nothing in /dev/shm that way, its segments are files of the data directory.
	"dynamic_shared_memory_type": "mmap",
	"log_line_prefix":            "%m [%p] %a ",
}

// configure appends to postgresql.conf; of two lines about one setting the later counts.
func (s *Server) configure(options Options) error {
	settings := maps.Clone(commonSettings)
	if runtime.GOOS == "windows" {
		delete(settings, "dynamic_shared_memory_type")
	}
	if !options.Durable {
		maps.Copy(settings, fastSettings)
	}
	maps.Copy(settings, options.Settings)

	var lines strings.Builder
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		fmt.Fprintf(&lines, "%s = '%s'\n", name, strings.ReplaceAll(settings[name], "'", "''"))
	}
	return appendTo(filepath.Join(s.data(), "postgresql.conf"), lines.String())
}

func appendTo(path, text string) error {
	file, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return fmt.Errorf("testserver: %w", err)
	}
	_, err = file.WriteString(text)
	if err := errors.Join(err, file.Close()); err != nil {
		return fmt.Errorf("testserver: %w", err)
	}
	return nil
}

// tool runs one of PostgreSQL's programs as the server's account. An error carries what the program said.
func (s *Server) tool(ctx context.Context, name string, args ...string) error {
	// On Linux the program ends with the thread that starts it, which therefore must not end before.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()

	path := filepath.Join(s.bin, executable(name))
	if _, err := os.Stat(path); err != nil {
		return fmt.Errorf("testserver: %s is not among the PostgreSQL programs in %s: install the whole server "+
			"package, or name another directory in %s", name, s.bin, BinDirVariable)
	}
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Dir = s.dir
	cmd.Env = append(serverEnviron(), "PGPASSWORD="+s.password) // not an argument, which everybody can see
	cmd.SysProcAttr = toolAttr(s.account)
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("testserver: %s: %w: %s", path, errors.Join(err, ctx.Err()), lastLines(string(out)))
	}
	return nil
}

// serverEnviron is our environment without what would steer PostgreSQL's programs, like PGDATA or a language.
func serverEnviron() []string {
	var kept []string
	for _, entry := range os.Environ() {
		if !strings.HasPrefix(entry, "PG") && !strings.HasPrefix(entry, "LC_") && !strings.HasPrefix(entry, "LANG") {
			kept = append(kept, entry)
		}
	}
	return append(kept, "LC_ALL=C")
}

// lastLines cuts a program's output to what tells why it failed.
func lastLines(output string) string {
	const most = 12
	lines := strings.Split(strings.TrimSpace(output), "\n")
	if len(lines) > most {
		lines = lines[len(lines)-most:]
	}
	return strings.Join(lines, "\n")
}
