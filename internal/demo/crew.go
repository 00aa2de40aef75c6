package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"time"
)

// patience bounds every wait except the one for the server.
const patience = 30 * time.Second

// crew is the workers of an act.
type crew struct{ members []*member }

// member is a worker, as the parent sees it.
type member struct {
	name   string
	cmd    *exec.Cmd
	stdin  io.Closer    // its end ends the worker
	stderr bytes.Buffer // read after exited
	err    error        // how it ended; read after exited
	exited chan struct{}
	killed bool // by us
}

// hire starts a worker.
func (c *crew) hire(job assignment) (*member, error) {
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	text, err := json.Marshal(job)
	if err != nil {
		return nil, err
	}
	m := &member{name: job.Name, cmd: exec.Command(program), exited: make(chan struct{})}
	m.cmd.Env = append(os.Environ(), workerVariable+"="+string(text))
	m.cmd.SysProcAttr = workerAttr()
	m.cmd.Stderr = &m.stderr
	if m.stdin, err = m.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	if err := m.cmd.Start(); err != nil {
		return nil, fmt.Errorf("worker %s: %w", m.name, err)
	}
	c.members = append(c.members, m)
	go func() {
		defer close(m.exited)
		m.err = m.cmd.Wait()
	}()
	return m, nil
}

func (m *member) pid() int { return m.cmd.Process.Pid }

// kill ends the process at once, paused or not.
func (m *member) kill() {
	m.killed = true
	_ = m.cmd.Process.Kill() // it may have ended
}

func (m *member) ended() bool {
	select {
	case <-m.exited:
		return true
	default:
		return false
	}
}

// dismiss kills the workers that still run, and returns when all are gone.
func (c *crew) dismiss() {
	for _, m := range c.members {
		m.kill()
	}
	for _, m := range c.members {
		<-m.exited
		m.stdin.Close()
	}
}

// failure returns an error if a worker that was not killed has failed.
func (c *crew) failure() error {
	for _, m := range c.members {
		if m.ended() && m.err != nil && !m.killed {
			return fmt.Errorf("worker %s: %w: %s", m.name, m.err, strings.TrimSpace(m.stderr.String()))
		}
	}
	return nil
}

// until polls until done returns true. It fails when a worker does, when ctx ends, or after patience.
// The error says what it waited for.
func (c *crew) until(ctx context.Context, what string, done func() (bool, error)) error {
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("waited %v for %s", patience, what))
	defer cancel()
	for {
		if err := c.failure(); err != nil {
			return err
		}
		if ok, err := done(); ok || err != nil {
			return err
		}
		if pause(ctx, 10*time.Millisecond); ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
}
