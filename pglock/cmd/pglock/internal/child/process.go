package child

import "os"

// Process is a command that was started. Only one goroutine may call its methods.
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

// Status returns the command's exit status, or 128 plus the number of the signal that ended it.
// Done must be closed.
func (p *Process) Status() int { return p.status }

// Signaled reports whether a signal ended the command, which Windows does not know. Done must be
// closed.
func (p *Process) Signaled() bool { return p.signaled }
