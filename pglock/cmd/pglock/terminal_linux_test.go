package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/pglock/pglock-go/internal/locktest"
	"github.com/pglock/pglock-go/internal/pgtest"
)

// screen is a terminal on which a test types and reads.
type screen struct {
	t      *testing.T
	master *os.File
	slave  *os.File

	mu   sync.Mutex
	text bytes.Buffer // everything that was shown
	seen int          // how much of it a test has seen
}

func newScreen(t *testing.T) *screen {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0)
	locktest.OK(t, err)
	raw, err := master.SyscallConn()
	locktest.OK(t, err)
	var number int
	var ioctl error
	err = raw.Control(func(fd uintptr) {
		if ioctl = unix.IoctlSetPointerInt(int(fd), unix.TIOCSPTLCK, 0); ioctl == nil {
			number, ioctl = unix.IoctlGetInt(int(fd), unix.TIOCGPTN)
		}
	})
	if err != nil || ioctl != nil {
		t.Fatal(err, ioctl)
	}
	slave, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|syscall.O_NOCTTY, 0)
	locktest.OK(t, err)
	s := &screen{t: t, master: master, slave: slave}
	var reading sync.WaitGroup
	reading.Go(s.read)
	t.Cleanup(func() {
		slave.Close()
		master.Close()
		reading.Wait()
	})
	return s
}

func (s *screen) read() {
	buffer := make([]byte, 4096)
	for {
		n, err := s.master.Read(buffer)
		s.mu.Lock()
		s.text.Write(buffer[:n])
		s.mu.Unlock()
		if err != nil {
			return
		}
	}
}

// attach makes cmd the leader of a new session on the terminal.
func (s *screen) attach(cmd *exec.Cmd) {
	cmd.Stdin, cmd.Stdout, cmd.Stderr = s.slave, s.slave, s.slave
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
}

func (s *screen) types(keys string) {
	s.t.Helper()
	if _, err := s.master.WriteString(keys); err != nil {
		s.t.Fatal(err)
	}
}

// shows waits until text that matches is shown after the text of the last call.
func (s *screen) shows(pattern string) {
	s.t.Helper()
	re := regexp.MustCompile(pattern)
	defer func() {
		if s.t.Failed() {
			s.t.Logf("the screen:\n%s", s.text.String())
		}
	}()
	pgtest.Eventually(s.t, "the screen shows "+pattern, func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		at := re.FindIndex(s.text.Bytes()[s.seen:])
		if at != nil {
			s.seen += at[1]
		}
		return at != nil
	})
}

const ctrlC, ctrlD, ctrlZ = "\x03", "\x04", "\x1a"

// TestTerminalWithoutShell: pglock is the only program on the terminal, as in a container. The command
// is in the foreground without being stopped first. After Ctrl-Z it continues, since no shell could
// continue it.
func TestTerminalWithoutShell(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	s := newScreen(t)
	p := c.startWith(s.attach, "run", "n", "--", "sh", "-c", `
		trap 'echo interrupted; exit 5' INT
		set -- $(ps -o tpgid=,pgid= -p $$); test "$1" = "$2" && echo in front || echo behind: $1 $2
		read line; echo "got $line"; while :; do sleep 0.02; done`)
	s.shows("in front")
	s.types(ctrlZ)
	s.shows(`\^Z`)
	s.types("hello\n")
	s.shows("got hello")
	s.types(ctrlC) // only the command gets it, since it is in the foreground
	s.shows("interrupted")
	if r := p.wait(); r.status != 5 {
		t.Errorf("got %+v", r)
	}
}

// shell starts an interactive shell with the prompt "ready> " on a screen.
func (c *cli) shell() *screen {
	c.t.Helper()
	s := newScreen(c.t)
	c.set("PS1", "ready> ")
	c.set("ENV", "")
	c.startWith(func(cmd *exec.Cmd) {
		cmd.Path, cmd.Args = "/bin/sh", []string{"sh", "-i"}
		s.attach(cmd)
	})
	s.shows("ready> ")
	s.types("set -m\n")
	s.shows("ready> ")
	c.t.Cleanup(func() { s.types("\nexit\nexit\n") }) // the second exit ignores stopped jobs
	return s
}

func TestJobControl(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	s := c.shell()
	s.types("pglock run n -- sh -c 'echo $$ > pid; cat'; echo status $?\n")
	pid := c.pid("pid")
	s.types("one\n")
	s.shows("one\r\none")
	s.types(ctrlZ)
	s.shows("ready> ")
	if stat := read(t, fmt.Sprintf("/proc/%d/stat", pid)); !strings.Contains(stat, ") T ") {
		t.Errorf("the command is not stopped: %s", stat)
	}
	s.types("fg\n")
	s.shows("pglock run")
	s.types("two\n")
	s.shows("two\r\ntwo")
	s.types(ctrlD)
	s.shows("ready> ")
	s.types("echo status $?\n") // the shell is in the foreground again
	s.shows(`status 0\r\n`)
}

// TestStoppedTooLong: the supervisor ends the stopped command before its lease expires.
func TestStoppedTooLong(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	s := c.shell()
	s.types("pglock run --ttl 2s n -- sh -c 'echo $$ > pid; cat'\n")
	pid := c.pid("pid")
	s.types("one\n")
	s.shows("one\r\none")
	s.types(ctrlZ)
	s.shows("ready> ")
	gone(t, pid)
	s.types("fg; echo status $?\n")
	s.shows("lost the lock")
	s.shows(`status 76\r\n`)
}

// TestPipeline: the other end of the pipe keeps the terminal until the command reads from it.
func TestPipeline(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	s := c.shell()
	s.types("pglock run n -- cat | cat\n")
	s.types("hello\n")
	s.shows(`hello\r\nhello\r\n`)
	s.types(ctrlC)
	s.shows("ready> ")
	pgtest.Eventually(t, "the lock is free", func() bool { holder, _ := c.row("n"); return holder == "" })
}

// TestPager: the pager reads from the terminal, the command does not.
func TestPager(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	s := c.shell()
	s.types(`pglock run n -- sh -c 'echo page; until test -e go; do sleep 0.02; done' | sh -c 'read line; echo "line $line"; read key < /dev/tty; echo "key $key"'` + "\n")
	s.shows(`line page\r\n`)
	s.types("q\n")
	s.shows(`key q\r\n`)
	c.touch("go")
	s.shows("ready> ")
}

// TestScriptGetsTheTerminalBack: pglock returns the terminal to a shell without job control, which
// does not take it.
func TestScriptGetsTheTerminalBack(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	s := c.shell()
	s.types(`sh -c 'pglock run n -- sh -c "read x; echo first \$x"; read y; echo second $y'` + "\n")
	s.types("a\n")
	s.shows(`first a\r\n`)
	s.types("b\n")
	s.shows(`second b\r\n`)
}
