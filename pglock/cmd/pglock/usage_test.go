package main

import (
	"io"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// TestWrongUsage needs no server: pglock checks all of this before it connects.
func TestWrongUsage(t *testing.T) {
	t.Parallel()
	c := bareCLI(t)
	c.set("PGLOCK_DATABASE_URL", "postgres://127.0.0.1:1/none")
	for _, test := range []struct {
		args string
		says string
	}{
		{"", "no command is given"},
		{"rum", `unknown command "rum": did you mean run?`},
		{"postgres://me:secret@host/db", "unknown command:"},
		{"--nonesuch", "unknown flag --nonesuch"},
		{"--database-ulr=postgres://me:secret@host/db version", "unknown flag --database-ulr"},
		{"-dpostgres://me:secret@host/db version", "unknown flag -d"},
		{"--database-url", "--database-url needs a value"},
		{"run", "no lock name is given"},
		{"run -- pglock", "no lock name is given"},
		{"run n", "-- is missing"},
		{"run n true -x", "unknown flag -x"},
		{"run n --", "no command is given after --"},
		{"run n postgres://me:secret@host/db -- pglock", "more than one argument before --"},
		{"run --ttl 0 n -- pglock", "--ttl 0s is too short: must be more than 0"},
		{"run --ttl 1ms n -- pglock", "TTL 1ms: out of range: must be from 10ms"},
		{"run --ttl soon n -- pglock", "--ttl is not a duration"},
		{"run --wait 5min n -- pglock", "--wait is not a duration"},
		{"run --wait -1s n -- pglock", "--wait -1s is negative: must be 0 or more"},
		{"run --wait --database-url=postgres://me:secret@host/db n -- pglock", "--wait is not a duration"},
		{"run --grace -1s n -- pglock", "--grace -1s is negative: must be 0 or more"},
		{"run --ttl 10s --grace 5s n -- pglock", "--grace 5s is too long for --ttl 10s: must be less than half of it"},
		{"run --busy-status 256 n -- pglock", "--busy-status 256 is out of range: must be 0 to 255"},
		{"run --busy-status no n -- pglock", "--busy-status is not a number"},
		{"run --tick soon n -- pglock", "--tick is invalid: must be a duration, like 1h, or daily@HH:MM, or cron MINUTE HOUR DAY MONTH WEEKDAY"},
		{"run --tick daily@25:00 n -- pglock", "--tick is invalid"},
		{"run --tick 1000000h n -- pglock", "it comes too rarely"},
		{"run --once-per 10ms n -- pglock", "--once-per 10ms is too short: must be 1s or more"},
		{"run --once-per daily n -- pglock", "--once-per is not a duration"},
		{"run --once-per 1h --tick 1h n -- pglock", "must be one of them"},
		{"run --count-failed n -- pglock", "must be with --tick or --once-per"},
		{"run --retry 3 n -- pglock", "must be with --tick or --once-per"},
		{"run --tick 1h --backoff 3s n -- pglock", "must be with --retry"},
		{"show", "no lock name is given"},
		{"show n postgres://me:secret@host/db", "more than one argument"},
		{"release --force", "no lock name is given"},
		{"release n", "confirm with --force"},
		{"release n --force", "the holder is told why: give a --reason"},
		{"release n --force --reason= --token 3", "give a --reason"},
		{"ask n", "the holder is told why: give a --reason"},
		{"ask n --reason r --token 0", "--token 0 is out of range: must be 1 or more"},
		{"doctor --now --quiet", "--now excludes --quiet, --json and --as: must be alone"},
		{"doctor --now --as reader", "must be alone"},
		{"ask", "no lock name is given"},
		{"release n --force --token 0", "--token 0 is out of range: must be 1 or more"},
		{"release n --force --token secret", "--token is not a number"},
		{"migrate up --grant-user= ", "--grant-user has an invalid value"},
		{"migrate up --grant-writer= ", "--grant-writer has an invalid value"},
		{"migrate down --yes --grant-user r", "unknown flag --grant-user"},
		{"--version=perhaps", "--version has an invalid value"},
		{"run --label secret n -- pglock", "--label is invalid: must be key=value"},
		{"run --label a=1 --label a=2 n -- pglock", "each key once"},
		{"run --holder= n -- pglock", `holder ""`},
		{"run --quiet=perhaps n -- pglock", "--quiet has an invalid value"},
		{"run --schema pg_mine n -- pglock", "invalid schema name"},
		{"migrate", "up, down, version or force N"},
		{"migrate down", "held ones: confirm with --yes"},
		{"migrate force", "must be the version"},
		{"migrate force 999", "must be a number from 0"},
	} {
		r := c.expect(statusUsage, strings.Fields(test.args)...)
		switch {
		case !strings.HasPrefix(r.stderr, "pglock: ") || !strings.Contains(r.stderr, test.says) || !strings.Contains(r.stderr, "--help"):
			t.Errorf("pglock %s: prints %q, want %q and the --help to read", test.args, r.stderr, test.says)
		case strings.Count(r.stderr, "\n") != 1 || r.stdout != "":
			t.Errorf("pglock %s: more than one line:\n%s%s", test.args, r.stdout, r.stderr)
		case strings.Contains(r.stderr, "secret"):
			t.Errorf("pglock %s: repeats what may be a password: %s", test.args, r.stderr)
		}
	}
}

// TestCompletionOfFlags: no flag takes a file, and those with a few values offer them.
func TestCompletionOfFlags(t *testing.T) {
	t.Parallel()
	complete := func(args ...string) string {
		var out strings.Builder
		root := newRoot()
		root.SetOut(&out)
		root.SetErr(io.Discard)
		root.SetArgs(append([]string{cobra.ShellCompRequestCmd}, args...))
		if err := root.Execute(); err != nil {
			t.Errorf("%q: %v", args, err)
		}
		return out.String()
	}
	values := map[string]string{
		"pglock top --screen": "now\nheld\nwaiting\nblocking\npermits\nelections\nschedules\nonce\ndoctor\n",
		"pglock doctor --as":  "user\nwriter\nowner\nreader\n",
		"pglock ui --access":  "read\noperate\nrevoke\n",
	}
	seen := 0
	var visit func(cmd *cobra.Command)
	visit = func(cmd *cobra.Command) {
		cmd.LocalFlags().VisitAll(func(flag *pflag.Flag) {
			if flag.Value.Type() == "bool" {
				return
			}
			seen++
			path := cmd.CommandPath() + " --" + flag.Name
			if got, want := complete(append(strings.Fields(path)[1:], "")...), values[path]+":4\n"; got != want {
				t.Errorf("%s offers %q, want %q", path, got, want)
			}
		})
		for _, c := range cmd.Commands() {
			visit(c)
		}
	}
	visit(newRoot())
	if seen < 30 {
		t.Errorf("%d flags", seen)
	}
}

// TestHealthzIsNoLivenessProbe: it depends on the database, so that an outage would restart all hosts.
func TestHealthzIsNoLivenessProbe(t *testing.T) {
	t.Parallel()
	manifest := read(t, "../../../docs/examples/kubernetes/leader.yaml")
	_, probe, found := strings.Cut(manifest, "livenessProbe:")
	probe, _, _ = strings.Cut(probe, "securityContext:")
	if !found || !strings.Contains(probe, "tcpSocket") || strings.Contains(probe, "httpGet") {
		t.Errorf("leader.yaml has the liveness probe %s", probe)
	}
	if text := help("lead"); strings.Contains(text, "for a liveness probe") || !strings.Contains(text, "As a liveness probe it would") {
		t.Errorf("the help of lead: %s", text)
	}
}

func TestInvalidLockName(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	for _, name := range []string{"", strings.Repeat("x", 513), "\xff"} {
		if r := c.expect(statusUsage, "run", name, "--", "pglock", "--version"); !strings.Contains(r.stderr, "invalid lock name") || r.stdout != "" {
			t.Errorf("%.10q: %+v", name, r)
		}
	}
}

func TestHelp(t *testing.T) {
	t.Parallel()
	c := bareCLI(t)
	if r := c.expect(0, "run", "--help"); !strings.Contains(r.stdout, "pglock run [flags] NAME -- COMMAND") || r.stderr != "" {
		t.Errorf("got %+v", r)
	}
	if r := c.expect(0, "completion", "bash"); !strings.Contains(r.stdout, "complete -o") {
		t.Error("no completion for bash")
	}
	if r := c.expect(0, "__complete"); !strings.Contains(r.stdout, "\nmigrate\t") {
		t.Errorf("completion of nothing: %+v", r)
	}
}
