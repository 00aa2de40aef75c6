package main

import (
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
	host, port := server.Hostname(), server.Port()
	server.User = url.UserPassword("postgres", "hunter2-fish")
	wrongKeyword := "host=" + host + " port=" + port + " user=postgres dbname=postgres sslmode=disable password="
	for _, test := range []struct {
		connString string
		status     int
	}{
		{broken[0], statusUsage},
		{broken[2], statusUsage},
		{"host=127.0.0.1 password=hunt er2", statusUsage},
		{"postgres://me:hunter2-fish@127.0.0.1:1/db", statusUnavailable},
		{"postgres://me:hunter2-fish@no-such-host.invalid/db", statusUnavailable},
		{"postgres://me:hunter2-fish@127.0.0.1:1,127.0.0.1:2/db", statusUnavailable},
		{server.String(), statusUnavailable},
		{wrongKeyword + "hunter2-fish", statusUnavailable},
	} {
		for source, args := range map[string][]string{
			"--database-url":       {"run", "--database-url", test.connString, "n", "--", "pglock"},
			"$PGLOCK_DATABASE_URL": {"run", "n", "--", "pglock"},
			"$DATABASE_URL":        {"migrate", "up"},
		} {
			c := bareCLI(t)
			c.set("PGLOCK_DATABASE_URL", "")
			c.set(strings.TrimPrefix(source, "$"), test.connString)
			r := c.expect(test.status, args...)
			if text := r.stdout + r.stderr; leaks(text) || !strings.Contains(text, source) || strings.Count(text, "\n") != 1 {
				t.Errorf("%q in %s: got %s", test.connString, source, text)
			}
		}
	}
}

// TestParameterThatTheServerRefuses: after a blank, the rest of an unquoted password looks like a
// parameter, and the server's error names it.
func TestParameterThatTheServerRefuses(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	config := c.pool.Config().ConnConfig
	c.set("PGPASSWORD", config.Password)
	r := c.expect(statusUsage, "run", "n", "--database-url",
		"host="+config.Host+" port="+portOf(t)+" dbname=postgres sslmode=disable user=postgres passwd=x hunt=er2", "--", "pglock")
	if leaks(r.stderr) || !strings.Contains(r.stderr, "refuses a parameter") {
		t.Errorf("got %s", r.stderr)
	}
}

func portOf(t *testing.T) string {
	t.Helper()
	server, err := url.Parse(pgtest.URL(t))
	locktest.OK(t, err)
	return server.Port()
}

func TestDatabaseSource(t *testing.T) {
	t.Parallel()
	good := pgtest.URL(t)
	nowhere := "postgres://127.0.0.1:1/none"
	password, _ := mustParse(t, good).User.Password()
	for _, test := range []struct {
		name   string
		args   []string
		env    map[string]string
		status int
	}{
		{"flag first", []string{"--database-url", good}, map[string]string{"PGLOCK_DATABASE_URL": nowhere, "DATABASE_URL": nowhere}, 0},
		{"then our variable", nil, map[string]string{"PGLOCK_DATABASE_URL": good, "DATABASE_URL": nowhere}, 0},
		{"then the usual one", nil, map[string]string{"DATABASE_URL": good, "PGHOST": "127.0.0.2", "PGPORT": "1"}, 0},
		{"then libpq's", nil, map[string]string{"PGHOST": mustParse(t, good).Hostname(), "PGPORT": portOf(t), "PGUSER": "postgres",
			"PGDATABASE": "postgres", "PGPASSWORD": password, "PGSSLMODE": "disable"}, 0},
		{"libpq's lead nowhere", nil, map[string]string{"PGHOST": "127.0.0.1", "PGPORT": "1"}, statusUnavailable},
		{"libpq's are wrong", nil, map[string]string{"PGPORT": "hunter2"}, statusUsage},
		{"an empty flag", []string{"--database-url", ""}, map[string]string{"DATABASE_URL": good}, statusUsage},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			c := newCLI(t)
			c.set("PGLOCK_DATABASE_URL", "")
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
