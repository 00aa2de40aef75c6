package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/pglock/pglock-go/internal/testserver/process"
)

// member is a worker, as the parent sees it.
type member struct {
	name   string
	cmd    *exec.Cmd
	orders *json.Encoder // to its standard input
	stderr bytes.Buffer  // read after exited
	err    error         // how it ended; read after exited
	exited chan struct{}

	killed bool // by us; belongs to the goroutine that plays
}

// startMember starts a worker that hands each event of its life to report, from a
// goroutine of its own. The last event is exited.
//
// The goroutine keeps its thread: on Linux the kernel ends the worker when the
// thread that started it ends, and Go ends threads whenever it likes.
func startMember(job assignment, report func(event)) (*member, error) {
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	m := &member{name: job.Name, cmd: exec.Command(program), exited: make(chan struct{})}
	m.cmd.Env = append(os.Environ(), workerVariable+"="+job.Name)
	m.cmd.SysProcAttr = workerAttr()
	m.cmd.Stderr = &m.stderr
	orders, err := m.cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	m.orders = json.NewEncoder(orders)
	reports, err := m.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	started := make(chan error)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer close(m.exited)
		err := m.cmd.Start()
		started <- err
		if err == nil {
			m.listen(reports, report)
		}
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("worker %s: %w", m.name, err)
	}
	return m, m.tell(job)
}

// listen passes the worker's reports on until it has ended.
func (m *member) listen(reports io.Reader, report func(event)) {
	decoder := json.NewDecoder(reports)
	for {
		var e event
		if err := decoder.Decode(&e); err != nil {
			break // its end, or a line that the kill cut off
		}
		e.from, e.arrived = m, time.Now()
		report(e)
	}
	_, _ = io.Copy(io.Discard, reports) // so that it never blocks on a full pipe
	m.err = m.cmd.Wait()
	report(event{Kind: exited, from: m, arrived: time.Now()})
}

func (m *member) pid() int { return m.cmd.Process.Pid }

// tell sends a line. A paused worker gets it when it is woken.
func (m *member) tell(line any) error {
	if err := m.orders.Encode(line); err != nil {
		return fmt.Errorf("worker %s: %w", m.name, err)
	}
	return nil
}

// kill ends the process at once, paused or not. It does nothing to one that has ended.
func (m *member) kill() error {
	m.killed = true
	if err := m.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("kill worker %s: %w", m.name, err)
	}
	return nil
}

func (m *member) signal(s syscall.Signal) error {
	if err := m.cmd.Process.Signal(s); err != nil {
		return fmt.Errorf("signal %v to worker %s: %w", s, m.name, err)
	}
	return nil
}

// stopped reports whether the process stands still: a signal is only a request
// until its receiver has taken it.
func (m *member) stopped() (bool, error) {
	info, err := process.Find(m.pid())
	if err != nil {
		return false, fmt.Errorf("worker %s: %w", m.name, err)
	}
	return info.Stopped, nil
}

// unexpected returns how a worker that was not killed has ended badly, or nil.
func (m *member) unexpected() error {
	if m.killed || m.err == nil {
		return nil
	}
	return fmt.Errorf("worker %s ended by itself: %w: %s", m.name, m.err, strings.TrimSpace(m.stderr.String()))
}
