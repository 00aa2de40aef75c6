package child

import (
	"errors"
	"os"
	"os/signal"
	"runtime"
	"strconv"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// supervisorName is the first argument of a supervisor. The others are the socket, the two timers,
// 1 if the command starts in the foreground, the command's path, and the command's arguments.
//
// It is also the name of the process, which may have 15 bytes. It differs from pglock's, so that
// `pkill -9 pglock` does not kill the supervisor.
const supervisorName = "lock-supervisor"

const (
	// killInterval is the time between two rounds of killTree.
	killInterval = 5 * time.Millisecond

	// killTimeout bounds killTree: a process of another user can't be killed.
	killTimeout = 10 * time.Second
)

var hooked atomic.Bool

// errNotHooked: a program without Hook would start itself again and again.
var errNotHooked = errors.New("child: Hook was not called: must be the first call in main and in TestMain")

// Hook must be the first call in main, and in TestMain, of each program that calls Start. Start
// runs the program again as the command's supervisor. In that process Hook does not return, while
// in any other process it returns at once.
func Hook() {
	if os.Args[0] != supervisorName {
		hooked.Store(true)
		return
	}
	const numbers = 4
	if len(os.Args) < numbers+3 { // called by hand
		os.Exit(1)
	}
	var n [numbers]int
	for i := range n {
		var err error
		if n[i], err = strconv.Atoi(os.Args[1+i]); err != nil {
			os.Exit(1)
		}
	}
	command := Command{Path: os.Args[numbers+1], Args: os.Args[numbers+2:], Env: os.Environ()}
	supervise(n[0], deadlines{n[1], n[2]}, n[3] == 1, command)
	os.Exit(0)
}

// supervise starts the command, reports events about it and its descendants, and ends them at their
// deadlines, for which the other process may be suspended. It returns if the command could not be
// started, and otherwise when the process at the other end of the socket and all descendants have
// ended, unless it is killed before.
func supervise(fd int, timers deadlines, front bool, c Command) {
	runtime.LockOSThread() // the kernel kills the command when the thread that started it ends
	unix.CloseOnExec(fd)
	socket := linkOf(fd)
	timers.closeOnExec()
	_ = os.WriteFile("/proc/self/comm", []byte(supervisorName), 0) // the default is "exe"
	discardSignals()
	_ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)

	var t *terminal
	if front {
		if t = openTerminal(); t != nil {
			t.lent = true
		}
	}
	pid, err := c.start(t, &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL})
	if err != nil {
		var errno syscall.Errno
		if !errors.As(err, &errno) {
			errno = syscall.EINVAL
		}
		socket.send(event{failed, int32(errno)})
		return
	}
	socket.send(event{started, int32(pid)})

	treeEmpty, abandoned := make(chan struct{}), make(chan struct{})
	go func() {
		socket.receive() // no event ever comes: it returns when the other process has ended
		close(abandoned)
	}()
	go func() {
		<-abandoned
		killTree(pid, treeEmpty)
		os.Exit(0)
	}()
	go func() {
		waitTimer(timers.term)
		_ = signalTree(pid, 0, syscall.SIGTERM, syscall.SIGCONT) // some may have ended
	}()
	go func() {
		waitTimer(timers.kill)
		killTree(pid, treeEmpty)
	}()
	waitTree(pid, socket.send)
	close(treeEmpty)
	if !timers.termReached() { // all have ended in time, even if the other process reads it later
		timers.clear()
	}
	<-abandoned // the other process is alive, and will kill this one
}

// discardSignals makes signals to this process do nothing. A signal that was ignored from the start
// stays ignored, here and in the command. For other signals the command has the default action.
func discardSignals() {
	discarded := make(chan os.Signal, 1)
	for _, sig := range []os.Signal{
		syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM, syscall.SIGUSR1,
		syscall.SIGUSR2, syscall.SIGALRM, syscall.SIGVTALRM, syscall.SIGPIPE,
	} {
		if !signal.Ignored(sig) {
			signal.Notify(discarded, sig)
		}
	}
}

// waitTree reaps the command and all orphans below it, reports how the command stops and ends, and
// returns when no child is left.
func waitTree(command int, report func(event)) {
	for {
		pid, status, err := wait4(syscall.WUNTRACED)
		switch {
		case err != nil: // ECHILD
			report(event{treeEnded, 0})
			return
		case pid != command:
		case status.Stopped():
			report(event{stopped, int32(status.StopSignal())})
		default:
			report(event{ended, int32(status)})
		}
	}
}

// killTree kills all descendants, also those that are being started, until none is left.
func killTree(command int, treeEmpty <-chan struct{}) {
	next, timeout := time.NewTicker(killInterval), time.After(killTimeout)
	defer next.Stop()
	for {
		_ = signalTree(command, 0, syscall.SIGKILL)
		select { // in any order: one more round does no harm
		case <-treeEmpty:
			return
		case <-timeout:
			return
		case <-next.C:
		}
	}
}
