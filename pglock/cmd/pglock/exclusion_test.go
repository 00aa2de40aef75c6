//go:build unix

package main

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/pglock/pglock-go/internal/pgtest"
)

// section is a critical section. It ends when it has seen another one begin, or after some time.
const section = `
	echo begin >> log
	for i in 1 2 3 4 5 6 7 8 9 10; do
		test $(grep -c begin log) -gt $(($(grep -c end log) + 1)) && break
		sleep 0.02
	done
	echo end >> log`

func TestRunsDoNotOverlap(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	const n = 5
	var calls []*call
	for range n {
		calls = append(calls, c.start("run", "n", "--", "sh", "-c", section))
	}
	for _, p := range calls {
		if r := p.wait(); r.status != 0 {
			t.Errorf("got %+v", r)
		}
	}
	if got, want := read(t, filepath.Join(c.dir, "log")), strings.Repeat("begin\nend\n", n); got != want {
		t.Errorf("they overlapped:\n%s", got)
	}
}

// TestRunsOverlapWithoutTheLock is the control: runs with different names overlap, and so do runs
// without pglock.
func TestRunsOverlapWithoutTheLock(t *testing.T) {
	t.Parallel()
	for how, call := range map[string]func(c *cli, name string) *call{
		"other names": func(c *cli, name string) *call { return c.start("run", name, "--", "sh", "-c", section) },
		"no pglock":   func(c *cli, _ string) *call { return c.sh(section) },
	} {
		c := newCLI(t)
		log := filepath.Join(c.dir, "log")
		pgtest.Eventually(t, "with "+how+" two sections overlap", func() bool {
			one, two := call(c, "one"), call(c, "two")
			one.wait()
			two.wait()
			return strings.Contains(read(t, log), "begin\nbegin\n")
		})
	}
}
