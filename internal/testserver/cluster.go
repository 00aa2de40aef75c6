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

// initialize makes the cluster. initdb takes a second of computing and a copy a tenth of that, so
// the first server of a home makes a template for the others.
func (s *Server) initialize(ctx context.Context, h *home) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	template := h.templates[s.bin]
	if template == "" {
		var err error
		if template, err = s.makeTemplate(ctx, h); err != nil {
			return err
		}
		h.templates[s.bin] = template
	}
	if runtime.GOOS == "windows" {
		return os.CopyFS(s.data(), os.DirFS(template))
	}
	return s.run(ctx, "cp", "-R", template, s.data())
}

// makeTemplate makes a cluster that outlives the server.
func (s *Server) makeTemplate(ctx context.Context, h *home) (string, error) {
	draft, template := filepath.Join(s.dir, "template"), h.newDir()
	file := filepath.Join(s.dir, "password")
	if err := errors.Join(os.WriteFile(file, []byte(Password), 0o600), s.account.own(file)); err != nil {
		return "", fmt.Errorf("testserver: %w", err)
	}
	// The roles' passwords are kept as MD5 hashes too: SCRAM costs the server 4096 hashes of each login, also of one
	// that sends the password as it is.
	err := s.tool(ctx, "initdb", "--no-sync", "--auth=md5", "--pwfile="+file,
		"--username="+Superuser, "--encoding=UTF8", "--locale=C", "--pgdata="+draft)
	if err != nil {
		return "", err
	}
	return template, os.Rename(draft, template) // only the caller may write to the home
}

// configure appends to postgresql.conf. Of two lines for one setting the later one counts.
func (s *Server) configure(options Options) error {
	settings := map[string]string{
		"listen_addresses":        "127.0.0.1",
		"unix_socket_directories": "",
		"log_line_prefix":         "%m [%p] %a ",
		// A test whose network is frozen leaves a process in the middle of its authentication.
		// DROP DATABASE waits for it. A loaded machine takes seconds for a login.
		"authentication_timeout": "30s",
	}
	if runtime.GOOS != "windows" { // a killed server leaves nothing in /dev/shm
		settings["dynamic_shared_memory_type"] = "mmap"
	}
	if !options.Durable {
		settings["fsync"], settings["full_page_writes"] = "off", "off"
	}
	maps.Copy(settings, options.Settings)
	file, err := os.OpenFile(filepath.Join(s.data(), "postgresql.conf"), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return fmt.Errorf("testserver: %w", err)
	}
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		_, failed := fmt.Fprintf(file, "%s = '%s'\n", name, strings.ReplaceAll(settings[name], "'", "''"))
		err = errors.Join(err, failed)
	}
	return errors.Join(err, file.Close())
}

// tool runs one of PostgreSQL's programs.
func (s *Server) tool(ctx context.Context, name string, args ...string) error {
	if lacking(s.bin, []string{name}) != "" {
		return fmt.Errorf("testserver: %w: %s is not in %s: install the whole server package, or name another "+
			"directory in %s", ErrNoProgram, name, s.bin, BinDirVariable)
	}
	return s.run(ctx, filepath.Join(s.bin, executable(name)), args...)
}

// run runs a program as the server's account. The error has what the program printed.
func (s *Server) run(ctx context.Context, path string, args ...string) error {
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Dir = s.dir
	for _, entry := range os.Environ() { // without what steers PostgreSQL's programs
		if !strings.HasPrefix(entry, "PG") && !strings.HasPrefix(entry, "LC_") && !strings.HasPrefix(entry, "LANG") {
			cmd.Env = append(cmd.Env, entry)
		}
	}
	cmd.Env = append(cmd.Env, "LC_ALL=C", "PGPASSWORD="+Password) // arguments are visible to all users
	cmd.Env = append(cmd.Env, s.environ...)
	cmd.SysProcAttr = s.account.attr()
	out, err := cmd.CombinedOutput()
	if err == nil {
		return nil
	}
	hint := ""
	if s.account.name != "" && (errors.Is(err, os.ErrPermission) || strings.Contains(string(out), "ermission denied")) {
		hint = fmt.Sprintf("\nThe server runs as %s: set TMPDIR to a directory that this user can enter, such as /tmp.", s.account.name)
	}
	return fmt.Errorf("testserver: %s: %w: %s%s", path, errors.Join(err, ctx.Err()), LastLines(string(out)), hint)
}

// LastLines returns the end of a program's output.
func LastLines(output string) string {
	const most = 12
	lines := strings.Split(strings.TrimSpace(output), "\n")
	return strings.Join(lines[max(0, len(lines)-most):], "\n")
}
