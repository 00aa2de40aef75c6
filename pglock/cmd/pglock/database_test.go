package main

import (
	"errors"
	"fmt"
	"net/url"
	"strings"
	"testing"

	"github.com/pglock/pglock-go/internal/locktest"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/internal/testserver"
)

// TestPasswordIsNeverShown tries broken connection strings from each source, and valid ones whose
// server is unreachable or refuses the password.
func TestPasswordIsNeverShown(t *testing.T) {
	t.Parallel()
	// The shared server may require no password; a private server always does.
	server, err := url.Parse(pgtest.Server(t, testserver.Options{}).URL())
	locktest.OK(t, err)
	password, _ := server.User.Password()
	keywords := "host=" + server.Hostname() + " port=" + server.Port() + " user=postgres dbname=postgres sslmode=disable password="
	server.User = url.UserPassword("postgres", "hunter98-fish")
	for _, test := range []struct {
		connString string
		status     int
	}{
		{broken[0], statusUsage},
		{broken[2], statusUsage},
		{"host=127.0.0.1 password=hunt er98", statusUsage},
		{"postgres://me:hunter98-fish@127.0.0.1:1/db", statusUnavailable},
		{"postgres://me:hunter98-fish@no-such-host.invalid/db", statusUnavailable},
		{"postgres://me:hunter98-fish@127.0.0.1:1,127.0.0.1:2/db", statusUnavailable},
		{server.String(), statusUnavailable},
		{keywords + "hunter98-fish", statusUnavailable},
		// After a blank, the rest of an unquoted password looks like a parameter, and the server's error names it.
		{keywords + password + " passwd=x hunt=er98", statusUsage},
		{"postgres://" + server.Host + "/postgres?sslmode=disable&user=postgres&password=" + password + "&hunt=er98", statusUsage},
	} {
		for source, args := range map[string][]string{
			"--database-url":       {"run", "--database-url", test.connString, "n", "--", "pglock"},
			"$PGLOCK_DATABASE_URL": {"run", "n", "--", "pglock"},
			"$DATABASE_URL":        {"migrate", "up"},
		} {
			c := bareCLI(t)
			c.unset("PGLOCK_DATABASE_URL")
			c.set(strings.TrimPrefix(source, "$"), test.connString)
			r := c.expect(test.status, args...)
			if text := r.stdout + r.stderr; leaks(text) || !strings.Contains(text, source) || strings.Count(text, "\n") != 1 {
				t.Errorf("%q in %s: got %s", test.connString, source, text)
			}
		}
	}
}

// TestTheRefusedParameterIsNamed: parameters of other tools, and those of libpq that pgx does not know.
func TestTheRefusedParameterIsNamed(t *testing.T) {
	t.Parallel()
	for name, value := range map[string]string{"schema": "public", "pool": "5", "keepalives_idle": "3", "statement_timeout": "hunter98"} {
		c := bareCLI(t)
		u := mustParse(t, pgtest.URL(t))
		parameters := u.Query()
		parameters.Set(name, value)
		u.RawQuery = parameters.Encode()
		c.set("PGLOCK_DATABASE_URL", u.String())
		r := c.expect(statusUsage, "ls")
		if want := "in $PGLOCK_DATABASE_URL: the server refuses the parameter " + name + " (SQLSTATE "; !strings.Contains(r.stderr, want) || leaks(r.stderr) {
			t.Errorf("got %s, want %q", r.stderr, want)
		}
	}
}

func TestDatabaseSource(t *testing.T) {
	t.Parallel()
	good := pgtest.URL(t)
	nowhere := "postgres://127.0.0.1:1/none"
	server := mustParse(t, good)
	password, _ := server.User.Password()
	for _, test := range []struct {
		name   string
		args   []string
		env    map[string]string
		status int
	}{
		{"flag first", []string{"--database-url", good}, map[string]string{"PGLOCK_DATABASE_URL": nowhere, "DATABASE_URL": nowhere}, 0},
		{"then our variable", nil, map[string]string{"PGLOCK_DATABASE_URL": good, "DATABASE_URL": nowhere}, 0},
		{"then the usual one", nil, map[string]string{"DATABASE_URL": good, "PGHOST": "127.0.0.2", "PGPORT": "1"}, 0},
		{"then libpq's", nil, map[string]string{"PGHOST": server.Hostname(), "PGPORT": server.Port(), "PGUSER": "postgres",
			"PGDATABASE": "postgres", "PGPASSWORD": password, "PGSSLMODE": "disable"}, 0},
		{"libpq's lead nowhere", nil, map[string]string{"PGHOST": "127.0.0.1", "PGPORT": "1"}, statusUnavailable},
		{"libpq's are wrong", nil, map[string]string{"PGPORT": "hunter98"}, statusUsage},
		{"our variable is empty", nil, map[string]string{"PGLOCK_DATABASE_URL": "", "DATABASE_URL": good}, statusUsage},
		{"the usual one is empty", nil, map[string]string{"DATABASE_URL": "", "PGHOST": "127.0.0.1", "PGPORT": "1"}, statusUnavailable},
		{"the schema is empty", nil, map[string]string{"DATABASE_URL": good, "PGLOCK_SCHEMA": ""}, statusUsage},
		{"an empty flag", []string{"--database-url", ""}, map[string]string{"DATABASE_URL": good}, statusUsage},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			c := newCLI(t)
			c.unset("PGLOCK_DATABASE_URL")
			for name, value := range test.env {
				c.set(name, value)
			}
			if r := c.expect(test.status, append([]string{"migrate", "version"}, test.args...)...); leaks(r.stderr) {
				t.Error(r.stderr)
			}
		})
	}
}

func mustParse(t *testing.T, text string) *url.URL {
	t.Helper()
	u, err := url.Parse(text)
	locktest.OK(t, err)
	return u
}

// secret is the password in these tests. A part of it appears if a broken connection string is cut
// at the wrong place.
var secret = []string{"hunt", "er98", "fish"}

func leaks(text string) bool {
	for _, part := range secret {
		if strings.Contains(text, part) {
			return true
		}
	}
	return false
}

// broken are connection strings that a person may write by mistake.
var broken = []string{
	"postgres://me:hunt@er98@127.0.0.1:1/db",
	"postgres://me:hunt/er98@127.0.0.1:1/db",
	"postgres://me:1/er98@127.0.0.1:1/db",
	"postgres://me:1/hunt?er98=fish@127.0.0.1:1/db",
	"postgres://me:hunt?er98@fish@127.0.0.1:1/db",
	"postgres://me:hunt%er98@127.0.0.1:1/db",
	"postgres://me:hunter98 fish@127.0.0.1:1 /db",
	"postgres://me:hunter98:fish",
	"postgres://127.0.0.1:1/db?sslmode=hunter98",
	"postgres://127.0.0.1:1?password=hunt@er98",
	"postgres://127.0.0.1?password=hunt@er98",
	"postgres://me:hunter98@127.0.0.1:1/db?sslmode=nonsense",
	"postgres://me:hunter98@127.0.0.1:port/db",
	"postgres://me:hunter98@127.0.0.1:1/db?hunt er98=1",
	"postgresql://me:hunt@er98@127.0.0.1:1/db",
	"postgres:/me:hunter98@127.0.0.1:1/db",
	"mysql://me:hunter98@127.0.0.1:1/db",
	"mysql://me:hunt=er98@127.0.0.1:1/db",
	"me:hunter98@127.0.0.1:1/db",
	"hunter98",
	"host=127.0.0.1 port=1 password=hunt er98",
	"host=127.0.0.1 port=1 password=hunt er98 dbname=db",
	"host=127.0.0.1 port=1 password='hunter98",
	"host=127.0.0.1 port=1 password='hunt'er98",
	"host=hunt@er98 password=hunter98",
	"host=127.0.0.1 port=hunter98",
	"host=127.0.0.1 password=hunter98 sslmode=fish",
	"postgres://me:hunter98@127.0.0.1:1/db\x00",
}

func TestBrokenConnStrings(t *testing.T) {
	t.Parallel()
	for _, text := range broken {
		_, err := database{text, "$DATABASE_URL"}.config()
		if !errors.Is(err, errConnString) || !strings.Contains(err.Error(), "in $DATABASE_URL: ") {
			t.Errorf("%q: %v", text, err)
		}
		if err != nil && leaks(err.Error()) {
			t.Errorf("%q: the error shows a part of the password: %v", text, err)
		}
	}
}

func TestGoodConnStrings(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		"postgres://me:hunt%40er98@127.0.0.1:1/db",
		"postgres://me:hunt#er:2@[::1]:1/db",
		"postgresql://me@one.example,two-2.example:5433/db?target_session_attrs=read-write&application_name=me%40here",
		"postgres:///db?host=/var/run/postgresql",
		"postgres://bücher.example/db?pool_max_conns=3",
		"host=127.0.0.1 port=1 password='hunt er98' dbname=db app.user=x",
		"host=/tmp,@abstract password=hunter98",
	} {
		if _, err := (database{text, "--database-url"}).config(); err != nil {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// TestSessionsAreNamed: a session has the host and the process of the command, with which its
// holder's name begins.
func TestSessionsAreNamed(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	p := c.start("run", "n", "--", "sh", "-c", "echo up; exec sleep 60")
	p.waitForStdout("up")
	holder, _ := c.row("n")
	const sessions = "SELECT count(*) FROM pg_stat_activity WHERE starts_with($1, replace(application_name, ' (pglock)', ':')) AND application_name LIKE $2"
	if n := locktest.Scan[int](t, c.pool, sessions, holder, fmt.Sprintf("%%:%d (pglock)", p.cmd.Process.Pid)); n == 0 {
		t.Errorf("no session is named for %q", holder)
	}
}
