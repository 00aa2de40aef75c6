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

func (c Command) attr(sys *syscall.SysProcAttr) *os.ProcAttr {
	return &os.ProcAttr{Env: c.Env, Files: []*os.File{os.Stdin, os.Stdout, os.Stderr}, Sys: sys}
}

// Process is a command that was started, whose methods only one goroutine may call.
type Process struct {
	Stopped chan os.Signal // the signal, each time one has stopped the command; nil on Windows
	Done    chan struct{}  // closed when the command has ended, after the next two are set

	Status   int  // the command's, or 128 plus the number of the signal that ended it
	Signaled bool // a signal ended the command, which is never so on Windows
	system        // the fields of this operating system
}
