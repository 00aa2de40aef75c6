//go:build unix

package main

import (
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/internal/testserver"
)

// short is long enough for the leases of a busy machine.
var short = demo{workers: 3, rounds: 10, ttl: 700 * time.Millisecond}

// TestDemo plays the story. Without the guard it must fail, which is the control: what keeps deposits
// is the guard.
func TestDemo(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		noGuard bool
		want    error
		parts   []string
	}{
		"with the guard": {false, nil, []string{
			"KILLED", "takes over", "PAUSED", "WOKEN", "STALE WRITE", "REFUSED by its own clock",
			"REFUSED by the server, asked", "REFUSED by the server, which had ended", "As expected",
		}},
		"without it": {true, errNotAsExpected, []string{
			"ok      with the lock alone deposits are lost",
			"FAILED  with the guard the woken holders' late writes are refused",
			"FAILED  with the guard no deposit is lost",
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var out bytes.Buffer
			d, url := short, pgtest.Database(t)
			d.noGuard = c.noGuard
			err := d.play(t.Context(), url, &story{out: &out, begun: time.Now()})
			t.Log(out.String())
			if !errors.Is(err, c.want) {
				t.Errorf("got %v", err)
			}
			for _, part := range c.parts {
				if !strings.Contains(out.String(), part) {
					t.Errorf("the story does not tell: %s", part)
				}
			}
			nothingRemains(t, url, out.String())
		})
	}
}

// TestInterrupted ends the demo as Ctrl-C does, in the middle of each act.
func TestInterrupted(t *testing.T) {
	t.Parallel()
	for _, at := range []string{"begin", "KILLED", "PAUSED"} {
		t.Run(at, func(t *testing.T) {
			t.Parallel()
			url := pgtest.Database(t)
			cmd := demoCommand(testserver.ServerVariable+"=url", testserver.URLVariable+"="+url)
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			var told strings.Builder
			for chunk := make([]byte, 4096); !strings.Contains(told.String(), at) && err == nil; {
				var n int
				n, err = out.Read(chunk)
				told.Write(chunk[:n])
			}
			if err := cmd.Process.Signal(os.Interrupt); err != nil {
				t.Error(err)
			}
			_, _ = io.Copy(&told, out)
			_ = cmd.Wait() // judged by its status
			if code := cmd.ProcessState.ExitCode(); code != exitInterrupted {
				t.Errorf("exit status %d\n%s\n%s", code, told.String(), cmd.Stderr)
			}
			if !strings.Contains(told.String(), at) {
				t.Errorf("the story does not tell: %s\n%s", at, told.String())
			}
			nothingRemains(t, url, told.String())
		})
	}
}

func TestWithoutServer(t *testing.T) {
	t.Parallel()
	cmd := demoCommand(testserver.ServerVariable+"=url", testserver.URLVariable+"=", testserver.HandedVariable+"=")
	_ = cmd.Run() // judged by its status
	said := cmd.Stderr.(*bytes.Buffer).String()
	if code := cmd.ProcessState.ExitCode(); code != exitFailed || !strings.Contains(said, testserver.URLVariable) {
		t.Errorf("exit status %d\n%s", code, said)
	}
}

// demoCommand is the demo as a process of its own.
func demoCommand(environ ...string) *exec.Cmd {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(append(os.Environ(), demoVariable+"=1"), environ...)
	cmd.Stderr = new(bytes.Buffer)
	return cmd
}

var toldPids = regexp.MustCompile(`as processes ([0-9 ]+)`)

// nothingRemains checks that the workers that the story tells of have ended, and
// that the demo's schema is gone from the database.
func nothingRemains(t *testing.T, url, told string) {
	t.Helper()
	var schemas int
	const count = "SELECT count(*) FROM pg_namespace WHERE nspname LIKE 'pglock%'"
	if err := pgtest.PoolOn(t, url).QueryRow(t.Context(), count).Scan(&schemas); err != nil || schemas > 0 {
		t.Errorf("%d schemas are there, %v", schemas, err)
	}
	begun := toldPids.FindAllStringSubmatch(told, -1)
	if len(begun) == 0 {
		t.Error("no worker has begun")
	}
	for _, match := range begun {
		for _, text := range strings.Fields(match[1]) {
			pid, err := strconv.Atoi(text)
			if err != nil {
				t.Error(err)
			}
			if worker, err := os.FindProcess(pid); err == nil && worker.Signal(syscall.Signal(0)) == nil {
				t.Errorf("worker %d is there", pid)
			}
		}
	}
}
