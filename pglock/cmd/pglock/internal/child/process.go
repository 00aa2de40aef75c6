package child

import (
	"os"
	"syscall"
	"time"
)

// Command is a program to start, which inherits this process's stdin, stdout and stderr.
type Command struct {
	Path string   // of the program
	Args []string // the first is the name by which it is called
	Env  []string

	// Deadlines returns until when the command may run. On Linux the supervisor sends TERM to the
	// command and its descendants at term, and KILL at kill, unless a later call has returned a
	// later time before term, so it does this also while this process is suspended. A goroutine
	// calls Deadlines before the command starts, and then again and again, more often when term is
	// close. With nil, and on other systems, there are no deadlines.
	Deadlines func() (term, kill time.Time)
}

// attr returns the attributes of a process of the command.
func (c Command) attr(sys *syscall.SysProcAttr) *os.ProcAttr {
	return &os.ProcAttr{Env: c.Env, Files: []*os.File{os.Stdin, os.Stdout, os.Stderr}, Sys: sys}
}

// Process is a command that was started, whose methods only one goroutine may call.
type Process struct {
	stopped  chan os.Signal // nil on Windows, which does not stop processes
	done     chan struct{}  // closed when the command has ended
	status   int            // set before done is closed
	signaled bool           // set before done is closed
	system                  // the fields of this operating system
}

// Done returns a channel that is closed when the command has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Stopped returns a channel that receives the signal each time a signal has stopped the command.
func (p *Process) Stopped() <-chan os.Signal { return p.stopped }

// Status returns, once Done is closed, the command's exit status, or 128 plus the number of the
// signal that ended it.
func (p *Process) Status() int { return p.status }

// Signaled reports, once Done is closed, whether a signal ended the command, which is never so on
// Windows.
func (p *Process) Signaled() bool { return p.signaled }
