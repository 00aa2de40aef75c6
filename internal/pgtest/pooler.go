package pgtest

import (
	"bytes"
	"embed"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
)

const (
	// PoolerVariable is the path of the PgBouncer to use.
	PoolerVariable = "PGLOCK_TEST_PGBOUNCER"

	// PoolerPreparesVariable says that this PgBouncer knows prepared statements: 1.21 and later.
	PoolerPreparesVariable = "PGLOCK_TEST_PGBOUNCER_PREPARES"

	// PgpoolVariable is the path of the pgpool of Pgpool.
	PgpoolVariable = "PGLOCK_TEST_PGPOOL"

	// poolerScript ends a pooler by a signal when its standard input ends, as it does after a SIGKILL
	// of the test.
	poolerScript = `signal=$1; shift; "$@" </dev/null & pooler=$!; cat >/dev/null; kill -"$signal" $pooler; wait $pooler`
)

// PoolerModes returns the execution modes that the PgBouncer at hand supports in transaction mode,
// and the settings that it needs for them.
func PoolerModes() (modes []pgx.QueryExecMode, settings []string) {
	modes = []pgx.QueryExecMode{pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol, pgx.QueryExecModeCacheDescribe}
	if os.Getenv(PoolerPreparesVariable) != "" {
		return append(modes, pgx.QueryExecModeCacheStatement), []string{"max_prepared_statements = 100"}
	}
	return modes, nil
}

// Pooler starts a PgBouncer in front of the server at databaseURL and returns the URL through it.
// mode is "session" or "transaction", and settings are further lines of its configuration. Cleanup
// ends it. Without PgBouncer the test is skipped, see NeedTool.
func Pooler(tb testing.TB, databaseURL, mode string, settings ...string) string {
	tb.Helper()
	program := poolerProgram(tb)
	port, quoted := freePort(tb), func(s string) string { return "'" + strings.ReplaceAll(s, "'", "''") + "'" }
	server, password := config(tb, databaseURL), ""
	if server.Password != "" { // PgBouncer takes an empty one for a syntax error
		password = " password=" + quoted(server.Password)
	}
	file := writeConfig(tb, "pgbouncer.ini", server, settings, map[string]any{
		"port": port, "mode": mode, "user": quoted(server.User), "password": password,
	})
	command := []string{program, file}
	if os.Geteuid() == 0 { // PgBouncer refuses to run as root
		command = []string{program, "-u", "postgres", file}
	}
	return runPooler(tb, databaseURL, port, "TERM", command)
}

// Pgpool is Pooler for pgpool-II, with one backend. It lends each client a session of the server for
// as long as the client is connected. The test is skipped unless PgpoolVariable names the program,
// which testdata/matrix.sh does.
func Pgpool(tb testing.TB, databaseURL string, settings ...string) string {
	tb.Helper()
	program := os.Getenv(PgpoolVariable)
	if program == "" {
		tb.Skipf("only with %s: make matrix", PgpoolVariable)
	}
	port := freePort(tb)
	file := writeConfig(tb, "pgpool.conf", config(tb, databaseURL), settings, map[string]any{
		"port": port, "pcpPort": freePort(tb), "dir": tb.TempDir(),
	})
	return runPooler(tb, databaseURL, port, "INT", []string{program, "-n", "-f", file})
}

// runPooler starts a pooler, which Cleanup ends by the signal, and returns the URL through it.
func runPooler(tb testing.TB, databaseURL string, port int, signal string, command []string) string {
	tb.Helper()
	var log bytes.Buffer
	run := exec.Command("sh", append([]string{"-c", poolerScript, "sh", signal}, command...)...)
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
			tb.Logf("the pooler's log ends with:\n%s", log.Bytes()[max(0, log.Len()-32<<10):])
		}
	})
	through := poolerURL(tb, databaseURL, port)
	Eventually(tb, "the pooler answers", func() bool {
		return execute(config(tb, through), "SELECT 1") == nil
	})
	return through
}

// poolerURL replaces the server's address in databaseURL, which parameters may also contain. The
// pooler on this machine speaks no TLS.
func poolerURL(tb testing.TB, databaseURL string, port int) string {
	tb.Helper()
	u, err := url.Parse(databaseURL)
	if err != nil {
		tb.Fatal("pgtest: Pooler needs the server's address as a URL")
	}
	parameters := u.Query()
	parameters.Del("host")
	parameters.Del("port")
	parameters.Set("sslmode", "disable")
	u.Host, u.RawQuery = fmt.Sprintf("127.0.0.1:%d", port), parameters.Encode()
	return u.String()
}

func poolerProgram(tb testing.TB) string {
	tb.Helper()
	var program string
	NeedTool(tb, "pgbouncer", func() error {
		names := []string{"pgbouncer", "/usr/sbin/pgbouncer"} // the directory is not in every PATH
		if named := os.Getenv(PoolerVariable); named != "" {
			names = []string{named}
		}
		for _, name := range names {
			if path, err := exec.LookPath(name); err == nil {
				program = path
				return nil
			}
		}
		return fmt.Errorf("there is no %s: testdata/setup.sh installs it, or %s names another one",
			strings.Join(names, " and no "), PoolerVariable)
	})
	return program
}

//go:embed pgbouncer.ini pgpool.conf
var poolerConfigs embed.FS

// writeConfig writes a pooler's configuration, with the values and the server's address, and then the
// settings. It returns the file.
func writeConfig(tb testing.TB, name string, server *pgx.ConnConfig, settings []string, values map[string]any) string {
	tb.Helper()
	values["host"], values["serverPort"] = server.Host, server.Port
	template, err := poolerConfigs.ReadFile(name)
	text := os.Expand(string(template), func(name string) string { return fmt.Sprint(values[name]) })
	file := filepath.Join(tb.TempDir(), name)
	if err = errors.Join(err, os.WriteFile(file, []byte(text+strings.Join(settings, "\n")+"\n"), 0o600)); err != nil {
		tb.Fatal(err)
	}
	return file
}

// freePort returns a port on which nothing listens.
func freePort(tb testing.TB) int {
	tb.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}
