//go:build unix

package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/shirou/gopsutil/v4/process"

	"github.com/pglock/pglock-go/internal/pgtest"
)

// TestNothingIsLeftOfARunThatEnds ends runs in the middle of B3, which has workers, a PostgreSQL and the
// servers of peers.
func TestNothingIsLeftOfARunThatEnds(t *testing.T) {
	t.Parallel()
	const most = 10 * time.Second // without any care it is the minute of a turn
	for name, end := range map[string]func(pid int) error{
		"Ctrl-C": func(pid int) error { return syscall.Kill(-pid, syscall.SIGINT) },
		"kill":   func(pid int) error { return syscall.Kill(pid, syscall.SIGKILL) },
	} {
		t.Run(name, func(t *testing.T) {
			b := startBench(t, "-row", "B1,B3", "-rounds", "1", "-long", "1m")
			all := b.awaitB3(t)
			began := time.Now()
			if err := end(b.cmd.Process.Pid); err != nil {
				t.Fatal(err)
			}
			_ = b.cmd.Wait()
			took := time.Since(began)
			t.Logf("ended after %v, had %d processes", took.Round(time.Millisecond), len(all))
			if took > most {
				t.Errorf("it took %v to end", took)
			}
			if name != "kill" {
				if status := b.cmd.ProcessState.ExitCode(); status != exitInterrupted {
					t.Errorf("exit status %d", status)
				}
				for _, want := range []string{"pair p50", "\nB1 ", errInterrupted.Error()} {
					if !strings.Contains(b.out.String(), want) {
						t.Errorf("there is no %q in\n%s", want, &b.out)
					}
				}
			}
			pgtest.Eventually(t, "no process is left", func() bool {
				return !slices.ContainsFunc(append(all, b.family(t)...), running)
			})
			pgtest.Eventually(t, "no file is left", func() bool {
				left, err := os.ReadDir(b.dir)
				return err == nil && len(left) == 0
			})
		})
	}
}

// bench is a run in a process of its own, whose temporary files are all in dir.
type bench struct {
	cmd *exec.Cmd
	out bytes.Buffer
	dir string
}

func startBench(t *testing.T, args ...string) *bench {
	t.Helper()
	dir, err := os.MkdirTemp("", "bench-") //nolint:usetesting // the servers' account must get in
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o711); err != nil {
		t.Fatal(err)
	}
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	b := &bench{cmd: exec.Command(program, args...), dir: dir}
	b.cmd.Env = append(os.Environ(), mainVariable+"=1", "TMPDIR="+dir)
	b.cmd.Stdout, b.cmd.Stderr = &b.out, &b.out
	b.cmd.WaitDelay = time.Minute  // for workers that have the same stderr
	b.cmd.SysProcAttr = detached() // a process group, as a shell makes one
	if err := b.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.cmd.Process.Kill() })
	return b
}

// awaitB3 returns the processes of the run when all those of B3 are there.
func (b *bench) awaitB3(t *testing.T) (all []*process.Process) {
	t.Helper()
	wanted := []string{"postgres"}
	for _, p := range []peer{redisPeer, etcdPeer} {
		if path, err := p.find(); err == nil {
			t.Logf("%s is a peer", path)
			wanted = append(wanted, p.program)
		}
	}
	const workers = 2 * (fewProcesses + manyProcesses) // of pglock and of advisory locks
	pgtest.Eventually(t, "B3 is measured", func() bool {
		all = b.family(t)
		var programs []string // one of the cache is an argument of its loader
		own := 0
		for _, p := range all {
			line, _ := p.CmdlineSlice()
			for _, argument := range line {
				programs = append(programs, filepath.Base(argument))
			}
			if len(line) > 0 && line[0] == b.cmd.Path {
				own++
			}
		}
		return own > workers && !slices.ContainsFunc(wanted, func(w string) bool { return !slices.Contains(programs, w) })
	})
	return all
}

// family returns the run's process, those that have its directory in their arguments, and the children
// of all these.
func (b *bench) family(t *testing.T) (found []*process.Process) {
	t.Helper()
	rest, err := process.Processes()
	if err != nil {
		t.Fatal(err)
	}
	in := map[int32]bool{int32(b.cmd.Process.Pid): true}
	for known := -1; known < len(found); {
		known = len(found)
		rest = slices.DeleteFunc(rest, func(p *process.Process) bool {
			parent, _ := p.Ppid()
			line, _ := p.Cmdline()
			if !in[p.Pid] && !in[parent] && !strings.Contains(line, b.dir) {
				return false
			}
			in[p.Pid] = true
			found = append(found, p)
			return true
		})
	}
	return found
}

func running(p *process.Process) bool {
	exists, err := process.PidExists(p.Pid)
	status, _ := p.Status()
	return exists && err == nil && !slices.Contains(status, process.Zombie)
}
