package main

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pglock/pglock-go/internal/locktest"
	"github.com/pglock/pglock-go/internal/pgtest"
)

// tree is a command with three children: one in its group, one in another session, and one whose
// parent has ended. The last two are not in the command's group. The argument is what each does on
// TERM.
const tree = `
	leaf='trap "echo $2 >> log; $1" TERM; echo $$ > $2; while :; do sleep 0.02; done'
	sh -c "$leaf" sh "$1" member &
	setsid sh -c "$leaf" sh "$1" session &
	setsid sh -c '(sh -c "$0" sh "$1" orphan &)' "$leaf" "$1"
	until test -s member && test -s session && test -s orphan; do sleep 0.02; done
	echo $$ > parent
	while :; do sleep 0.02; done`

// tree starts a tree under the lock, and returns the process ids of its members.
func (c *cli) tree(onTerm string, flags ...string) (p *call, pids map[string]int) {
	c.t.Helper()
	p = c.start(append(append([]string{"run"}, flags...), "n", "--", "sh", "-c", tree, "sh", onTerm)...)
	pids = map[string]int{}
	for _, name := range []string{"parent", "member", "session", "orphan"} {
		pids[name] = c.pid(name)
	}
	return p, pids
}

// TestLossReachesOtherGroups: each process of the command gets TERM once, also one that left its process
// group, and KILL if it has not ended within the grace. The lock is the next holder's.
func TestLossReachesOtherGroups(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		onTerm, grace, says string
		messages            int
	}{
		"ends on TERM": {"exit", "9s", "stopping the command", 1},
		"ignores TERM": {":", "300ms", "did not end within 300ms: killing them", 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCLI(t)
			p, pids := c.tree(test.onTerm, "--ttl", "20s", "--grace", test.grace)
			c.steal("n")
			r := p.wait()
			if r.status != statusLost || !strings.Contains(r.stderr, `pglock: lost the lock "n" (token 1): `) || !strings.Contains(r.stderr, test.says) ||
				strings.Count(r.stderr, "pglock:") != test.messages {
				t.Errorf("got %+v", r)
			}
			if holder, _ := c.row("n"); holder != "thief" {
				t.Errorf("now %q holds the lock", holder)
			}
			for who, pid := range pids {
				if alive(pid) {
					t.Errorf("%s, process %d, runs on after pglock has ended", who, pid)
				}
			}
			log := read(t, filepath.Join(c.dir, "log"))
			for _, who := range []string{"member", "session", "orphan"} {
				if strings.Count(log, who+"\n") != 1 {
					t.Errorf("%s did not get TERM once: %q", who, log)
				}
			}
		})
	}
}

// TestLossEndsATreeThatGrows: processes that are started while others are killed are killed too,
// after the end of the command itself. All of them ignore TERM. The new ones run for longer than
// pglock waits for killed processes.
func TestLossEndsATreeThatGrows(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	c.set("GROW", `trap "" TERM HUP; until test -e go; do sleep 0.02; done; while test -d "$HOME"; do setsid sleep 30 & sleep 0.02; done`)
	p := c.start("run", "--ttl", "4s", "--grace", "100ms", "n", "--", "sh", "-c",
		`for i in 1 2 3 4; do setsid sh -c "$GROW" & done; echo $$ > pid; exec sleep 60`)
	c.pid("pid")
	c.steal("n")
	c.touch("go")
	if r := p.wait(); r.status != statusLost || !strings.Contains(r.stderr, "killing them") || strings.Contains(r.stderr, "can't be killed") {
		t.Errorf("got %+v", r)
	}
}

// TestTreeEndsWithAKilledPglock: after kill -9 of pglock, all processes of the command have ended
// when the next holder begins.
func TestTreeEndsWithAKilledPglock(t *testing.T) {
	t.Parallel()
	for name, script := range map[string]string{
		"a list of commands": `sh -c 'echo $$ > program; trap "" TERM HUP; while :; do sleep 0.02; done' && echo done`,
		"another session":    `setsid sh -c 'echo $$ > program; trap "" TERM HUP; while :; do sleep 0.02; done' & wait`,
		"an orphan":          `(setsid sh -c 'echo $$ > program; trap "" TERM HUP; while :; do sleep 0.02; done' &); sleep 60`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCLI(t)
			p := c.start("run", "--ttl", "2s", "n", "--", "sh", "-c", script)
			program := c.pid("program")
			locktest.OK(t, p.cmd.Process.Kill())
			next := c.expect(0, "run", "--wait", "30s", "n", "--", "sh", "-c", `kill -0 "$0" 2> /dev/null && echo overlap || echo alone`, strings.TrimSpace(read(t, filepath.Join(c.dir, "program"))))
			if next.stdout != "alone\n" {
				t.Errorf("the next holder finds the program of the one before: %s", next.stdout)
			}
			gone(t, program)
		})
	}
}

// TestRemainingProcessesAreNamed: processes of the command in other groups run on, and pglock
// prints their names.
func TestRemainingProcessesAreNamed(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	r := c.expect(3, "run", "n", "--", "sh", "-c", `setsid sh -c 'echo $$ > left; exec sleep 60' & until test -s left; do sleep 0.02; done; exit 3`)
	pid := c.pid("left")
	if !strings.Contains(r.stderr, "still run, now without the lock: ") || !strings.Contains(r.stderr, "(pid "+strings.TrimSpace(read(t, filepath.Join(c.dir, "left")))+")") {
		t.Errorf("says %q, and process %d is left", r.stderr, pid)
	}
	if !alive(pid) {
		t.Error("the process was ended")
	}
	pgtest.Eventually(t, "the lock is free", func() bool { holder, _ := c.row("n"); return holder == "" })
}

// TestCommandInheritsTheSameAsFromAShell: the command inherits pglock's files, more than the first
// three, but no descriptors or limits of pglock or the supervisor.
func TestCommandInheritsTheSameAsFromAShell(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	const show = `cat <&3; ls /proc/self/fd; ulimit -a; grep Sig[BIC] /proc/self/status; umask; pwd; cut -d ' ' -f 19 /proc/$$/stat`
	with3 := func(cmd *exec.Cmd) {
		file := c.file("inherited")
		_, err := file.WriteString("through\n")
		locktest.OK(t, err)
		_, err = file.Seek(0, 0)
		locktest.OK(t, err)
		cmd.ExtraFiles = append(cmd.ExtraFiles, file)
	}
	plain := c.startWith(func(cmd *exec.Cmd) { with3(cmd); cmd.Path, cmd.Args = "/bin/sh", []string{"sh", "-c", show} }).wait()
	under := c.startWith(with3, "run", "n", "--", "sh", "-c", show).wait()
	if plain != under || !strings.HasPrefix(under.stdout, "through\n") {
		t.Errorf("got\n%s, want\n%s", under.stdout, plain.stdout)
	}
}
