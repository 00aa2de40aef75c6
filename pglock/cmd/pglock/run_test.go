//go:build unix

package main

import (
	"bytes"
	"crypto/rand"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/pglock/pglock-go/internal/locktest"
	"github.com/pglock/pglock-go/internal/pgtest"
)

func TestExitStatus(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	plain := c.file("plain").Name()
	script := c.file("script").Name()
	locktest.OK(t, os.WriteFile(script, []byte("#!/no/such/interpreter\n"), 0o600))
	locktest.OK(t, os.Chmod(script, 0o700))
	for _, test := range []struct {
		command []string
		status  int
		says    string
	}{
		{[]string{"true"}, 0, ""},
		{[]string{"false"}, 1, ""},
		{[]string{"sh", "-c", "exit 75"}, 75, ""},
		{[]string{"sh", "-c", "exit 255"}, 255, ""},
		{[]string{"sh", "-c", "kill -KILL $$"}, 128 + 9, ""},
		{[]string{"sh", "-c", "kill -TERM $$"}, 128 + 15, ""},
		{[]string{"no-such-command"}, statusNotFound, "command not found: no-such-command"},
		{[]string{"./no-such-file"}, statusNotFound, "command not found: ./no-such-file"},
		{[]string{plain}, statusNotExecutable, "permission denied"},
		{[]string{c.dir}, statusNotExecutable, "is a directory"},
		{[]string{script}, statusNotExecutable, "can't execute " + script},
	} {
		r := c.expect(test.status, append([]string{"run", "n", "--"}, test.command...)...)
		if !strings.Contains(r.stderr, test.says) || test.says == "" && r.stderr != "" {
			t.Errorf("%q: says %q, want %q", test.command, r.stderr, test.says)
		}
		if holder, _ := c.row("n"); holder != "" {
			t.Errorf("%q: the lock is still held by %s", test.command, holder)
		}
	}
}

// TestEnvironment also reads the labels that are stored.
func TestEnvironment(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	c.set("PGLOCK_TOKEN", "of an outer run")
	const script = `echo "$PGLOCK_NAME|$PGLOCK_HOLDER|$PGLOCK_SCHEMA|$PGLOCK_TOKEN"; env | grep -c ^PGLOCK_TOKEN=`
	first := c.expect(0, "run", "--holder", "me and you", "--label", "commit=a,b=c", "--label", "empty=", "a name", "--", "sh", "-c", script)
	if want := "a name|me and you|" + c.schema + "|1\n1\n"; first.stdout != want {
		t.Errorf("got %q, want %q", first.stdout, want)
	}
	if labels := locktest.Scan[string](t, c.pool, "SELECT labels::text FROM "+c.table()); labels != `{"empty": "", "commit": "a,b=c"}` {
		t.Errorf("labels %s", labels)
	}
	second := c.expect(0, "run", "--schema", c.schema, "a name", "--", "sh", "-c", script)
	if !strings.HasSuffix(second.stdout, "|2\n1\n") || strings.Contains(second.stdout, "||") {
		t.Errorf("got %q", second.stdout)
	}
}

// TestStandardStreams: stdin, stdout and stderr are the command's, byte for byte.
func TestStandardStreams(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	data := make([]byte, 300_000)
	_, _ = rand.Read(data)
	r := c.startWith(func(cmd *exec.Cmd) { cmd.Stdin = bytes.NewReader(data) }, "run", "n", "--", "sh", "-c", "tee /dev/stderr").wait()
	if r.status != 0 || r.stdout != string(data) || r.stderr != string(data) {
		t.Errorf("status %d, %d bytes and %d bytes came out", r.status, len(r.stdout), len(r.stderr))
	}
}

func TestNestedRuns(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	r := c.expect(7, "run", "outer", "--", "pglock", "run", "inner", "--", "sh", "-c", "echo $PGLOCK_NAME $PGLOCK_SCHEMA; exit 7")
	if r.stdout != "inner "+c.schema+"\n" {
		t.Errorf("got %q", r.stdout)
	}
}

func TestTablesMissing(t *testing.T) {
	t.Parallel()
	c := bareCLI(t)
	r := c.expect(statusUnavailable, "--schema", pgtest.SchemaName(t), "run", "n", "--", "sh", "-c", "echo ran")
	if !strings.Contains(r.stderr, "pglock migrate up") || r.stdout != "" {
		t.Errorf("got %+v", r)
	}
}
