package pgtest

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// PoolerVariable names the PgBouncer to use, by its path; "none" leaves out the tests that need one.
const PoolerVariable = "PGLOCK_TEST_PGBOUNCER"

// PoolerPreparesVariable says, if it is set, that the PgBouncer at hand knows prepared statements: 1.21 and later.
const PoolerPreparesVariable = "PGLOCK_TEST_PGBOUNCER_PREPARES"

// PoolerModes returns the ways to send statements that the PgBouncer at hand lets pass in transaction mode, and
// the settings that it needs for them.
func PoolerModes() (modes []pgx.QueryExecMode, settings []string) {
	modes = []pgx.QueryExecMode{pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol}
	if os.Getenv(PoolerPreparesVariable) != "" {
		return append(modes, pgx.QueryExecModeCacheStatement, pgx.QueryExecModeCacheDescribe), []string{"max_prepared_statements = 100"}
	}
	return modes, nil
}

// poolerScript ends PgBouncer when the test ends, also by kill -9: its standard input ends then.
const poolerScript = `"$@" </dev/null & bouncer=$!; cat >/dev/null; kill $bouncer; wait $bouncer`

// Pooler starts a PgBouncer in front of the server at databaseURL and returns the URL through it. mode is
// "session" or "transaction"; settings are further lines of its configuration. It ends on cleanup.
func Pooler(tb testing.TB, databaseURL, mode string, settings ...string) string {
	tb.Helper()
	program := poolerProgram(tb)
	port := freePort(tb)
	config := filepath.Join(tb.TempDir(), "pgbouncer.ini")
	if err := os.WriteFile(config, []byte(poolerConfig(tb, databaseURL, mode, port, settings)), 0o600); err != nil {
		tb.Fatal(err)
	}
	command := []string{program, config}
	if os.Geteuid() == 0 { // which it refuses to run as
		command = []string{program, "-u", "postgres", config}
	}
	var log bytes.Buffer
	run := exec.Command("sh", append([]string{"-c", poolerScript, "sh"}, command...)...)
	run.Stdout, run.Stderr = &log, &log
	input, err := run.StdinPipe()
	if err != nil {
		tb.Fatal(err)
	}
	if err := run.Start(); err != nil {
		tb.Fatalf("pgtest: %v", err)
	}
	tb.Cleanup(func() {
		_ = input.Close()
		_ = run.Wait() // ended by a signal
		if tb.Failed() {
			tb.Logf("PgBouncer's log:\n%s", log.String())
		}
	})
	u, err := url.Parse(databaseURL)
	if err != nil {
		tb.Fatal("pgtest: Pooler needs the server's address as a URL")
	}
	u.Host = fmt.Sprintf("127.0.0.1:%d", port)
	through := u.String()
	Eventually(tb, 20*time.Second, "PgBouncer answers", func() bool { return answers(through) })
	return through
}

func poolerProgram(tb testing.TB) string {
	tb.Helper()
	switch named := os.Getenv(PoolerVariable); named {
	case "none":
		tb.Skipf("NOT RUN: %s=none", PoolerVariable)
	case "":
	default:
		return named
	}
	for _, name := range []string{"pgbouncer", "/usr/sbin/pgbouncer"} { // which is not in everybody's PATH
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	tb.Fatalf("pgtest: this test needs PgBouncer: install it (apt-get install pgbouncer, brew install pgbouncer), name it in %s, "+
		"or set that to none to leave out the tests with a pooler", PoolerVariable)
	return ""
}

func poolerConfig(tb testing.TB, databaseURL, mode string, port int, settings []string) string {
	tb.Helper()
	server, err := pgx.ParseConfig(databaseURL)
	if err != nil {
		tb.Fatalf("pgtest: %v", err)
	}
	quoted := func(s string) string { return "'" + strings.ReplaceAll(s, "'", "''") + "'" }
	lines := []string{
		"[databases]",
		fmt.Sprintf("* = host=%s port=%d user=%s password=%s", server.Host, server.Port, quoted(server.User), quoted(server.Password)),
		"[pgbouncer]",
		"listen_addr = 127.0.0.1",
		fmt.Sprintf("listen_port = %d", port),
		"unix_socket_dir =",
		"auth_type = any",
		"pool_mode = " + mode,
		"ignore_startup_parameters = extra_float_digits",
	}
	return strings.Join(append(lines, settings...), "\n") + "\n"
}

// freePort returns a port that nobody listens on.
func freePort(tb testing.TB) int {
	tb.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

func answers(databaseURL string) bool {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	conn, err := pgx.Connect(ctx, databaseURL)
	if err != nil {
		return false
	}
	defer conn.Close(ctx)
	return conn.Ping(ctx) == nil
}
