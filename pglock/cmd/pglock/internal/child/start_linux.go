package child

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

type system struct {
	pid             int // of the command and of its process group
	terminal        *terminal
	supervisor      *os.Process
	socket          link          // to the supervisor
	heartbeat       *heartbeat    // for the supervisor
	supervisorEnded chan struct{} // closed when the supervisor has ended
	treeEnded       chan struct{} // closed when the command and all its descendants have ended
	closing         atomic.Bool   // Close kills the supervisor
}

// Start starts the command under a supervisor, and on failure leaves nothing running. On success
// the caller must receive from Stopped until Done is closed, and then call Close.
//
// A process may have one command at a time, and no other children, because it reaps the orphans of
// a supervisor that was killed.
func Start(c Command) (*Process, error) {
	if !hooked.Load() {
		return nil, errNotHooked
	}
	// If this fails, the command's descendants are lost if the supervisor is killed.
	_ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
	p := newProcess()
	p.supervisorEnded, p.treeEnded = make(chan struct{}), make(chan struct{})
	if err := p.start(c); err != nil {
		p.terminal.close()
		return nil, err
	}
	go p.runEvents()
	return p, nil
}

func (p *Process) start(c Command) error {
	ours, theirs, err := newLink()
	if err != nil {
		return fmt.Errorf("socket to the supervisor: %w", err)
	}
	beat, err := newHeartbeat(c.Deadlines)
	if err != nil {
		_ = ours.Close()
		return errors.Join(fmt.Errorf("timers of the supervisor: %w", err), unix.Close(theirs))
	}
	p.terminal.lend()
	front := 0
	if p.terminal != nil && p.terminal.lent {
		front = 1
	}
	args := []string{supervisorName}
	for _, number := range []int{theirs, beat.term, beat.kill, front} {
		args = append(args, strconv.Itoa(number))
	}
	args = append(args, c.Path)
	process, err := os.StartProcess("/proc/self/exe", append(args, c.Args...),
		c.attr(&syscall.SysProcAttr{Setpgid: true})) // Ctrl-C must not end it before it discards signals
	_ = unix.Close(theirs)
	beat.closeOnExec()
	if err != nil {
		_ = ours.Close()
		beat.end()
		return fmt.Errorf("start the supervisor, which needs /proc: %v", err) //nolint:errorlint // not wrapped: fs.ErrNotExist would be about the command
	}
	p.supervisor, p.socket, p.heartbeat = process, ours, beat
	switch first, ok := ours.receive(); {
	case ok && first.Kind == started:
		p.pid = int(first.Value)
		return nil
	case ok:
		err = &fs.PathError{Op: "fork/exec", Path: c.Path, Err: syscall.Errno(first.Value)}
	default:
		err = errors.New("the supervisor ended before it started the command")
	}
	p.reapSupervisor()
	beat.end()
	return err
}

// runEvents handles the supervisor's events until the supervisor ends. If it was killed, its
// children are now this process's children, and runEvents waits for them.
func (p *Process) runEvents() {
	for {
		e, ok := p.socket.receive()
		if !ok {
			break
		}
		p.handle(e)
	}
	p.reapSupervisor()
	// Close sets closing before it kills the supervisor, so that runEvents does not wait for
	// processes that are left running.
	if p.closing.Load() {
		return
	}
	waitTree(p.pid, p.handle)
	p.handle(event{ended, int32(syscall.SIGKILL)}) // if the command's status was lost with the supervisor
}

// handle records an event of the supervisor, or of waitTree in this process.
func (p *Process) handle(e event) {
	switch e.Kind {
	case stopped:
		p.Stopped <- syscall.Signal(e.Value)
	case ended:
		if !isClosed(p.Done) {
			p.ended(syscall.WaitStatus(e.Value))
		}
	case treeEnded:
		if !isClosed(p.treeEnded) {
			close(p.treeEnded)
		}
	}
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// reapSupervisor waits for the end of the supervisor, whose children this process then inherits.
func (p *Process) reapSupervisor() {
	_, _ = p.supervisor.Wait()
	_ = p.socket.Close()
	close(p.supervisorEnded)
}

func (p *Process) signalTree(signals ...syscall.Signal) error {
	return signalTree(p.pid, p.supervisor.Pid, signals...)
}

// terminated keeps the supervisor from sending TERM again, and leaves the time for KILL.
func (p *Process) terminated() {
	p.heartbeat.halt()
	setTimer(p.heartbeat.term, time.Time{})
}

// Expired reports whether the time for TERM was reached while the command or one of its descendants
// was left. Then the supervisor sends TERM, unless it is suspended or was killed as well.
func (p *Process) Expired() bool { return p.heartbeat.termReached() }

// Alive reports whether the command or any of its descendants is left.
func (p *Process) Alive() bool { return !isClosed(p.treeEnded) }

// Remaining reports whether processes are left, and returns their names for messages, such as
// "sleep (pid 42)". It reads /proc, because the supervisor's event about the last process may be
// late.
func (p *Process) Remaining() (names []string, left bool) {
	for _, d := range descendants(os.Getpid(), p.supervisor.Pid) {
		names = append(names, d.String())
	}
	return names, len(names) > 0
}

// Close takes back the foreground of the terminal, and leaves the remaining processes running. It
// must be called after the end of the command, and may be called more than once.
func (p *Process) Close() {
	if p.closing.Swap(true) {
		return
	}
	p.terminal.close()
	p.heartbeat.end()
	if isClosed(p.supervisorEnded) {
		return
	}
	// KILL also ends a stopped supervisor, and leaves it no time to treat the end of the socket as
	// the end of this process, and to kill the tree.
	_ = p.supervisor.Kill() // it may have ended
	<-p.supervisorEnded
}

type event struct {
	Kind  kind
	Value int32
}

type kind int32

const (
	started   kind = iota // value: the command's process id
	failed                // the command could not start; value: errno
	stopped               // the command was stopped; value: the signal
	ended                 // the command has ended; value: the wait status
	treeEnded             // no descendant is left
)

// link is one end of the socket to the other process, which keeps message boundaries.
type link struct{ *os.File }

// newLink returns one end, and the descriptor of the other end, which the next program to start
// inherits. That descriptor keeps its number, because any other number may be one that the command
// inherits.
func newLink() (ours link, theirs int, err error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return link{}, 0, err
	}
	if _, err := unix.FcntlInt(uintptr(pair[1]), unix.F_SETFD, 0); err != nil {
		return link{}, 0, errors.Join(err, unix.Close(pair[0]), unix.Close(pair[1]))
	}
	return linkOf(pair[0]), pair[1], nil
}

func linkOf(fd int) link { return link{os.NewFile(uintptr(fd), "supervisor")} }

// send sends an event, unless the other end is closed.
func (l link) send(e event) { _ = binary.Write(l, binary.NativeEndian, e) }

// receive waits for an event, and returns false when the process at the other end has ended.
func (l link) receive() (e event, ok bool) {
	err := binary.Read(l, binary.NativeEndian, &e)
	return e, err == nil
}
