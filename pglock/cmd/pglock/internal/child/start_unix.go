//go:build unix && !linux

package child

import (
	"errors"
	"syscall"
)

// system has the fields of a Process: the command is this process's own child.
type system struct {
	pid      int // of the command and of its process group
	terminal *terminal
}

// Start starts the command, and on failure leaves nothing running. On success the caller must
// receive from Stopped until Done is closed, and then call Close.
//
// A process may have one command at a time, and no other children.
func Start(c Command) (*Process, error) {
	p := newProcess()
	p.terminal.lend()
	var err error
	if p.pid, err = c.start(p.terminal, &syscall.SysProcAttr{}); err != nil {
		p.terminal.close()
		return nil, err
	}
	go p.runWait()
	return p, nil
}

func (p *Process) runWait() {
	for {
		pid, status, err := wait4(syscall.WUNTRACED)
		switch {
		case err == nil && pid != p.pid:
		case err == nil && status.Stopped():
			p.Stopped <- status.StopSignal()
		default: // an error is impossible: nothing else waits for the command
			p.ended(status)
			return
		}
	}
}

// signalTree reaches the group only: processes that have left it can't be found.
func (p *Process) signalTree(signals ...syscall.Signal) (err error) {
	for _, sig := range signals {
		err = errors.Join(err, p.Signal(sig))
	}
	return err
}

func (p *Process) terminated() {}

// Close takes back the foreground of the terminal, and must be called after the end of the command.
func (p *Process) Close() {
	p.terminal.close()
	p.terminal = nil
}
