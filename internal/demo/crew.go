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

// crew is the workers of an act, and what they have reported.
type crew struct {
	members []*member
	events  chan event
	heard   []event
}

// member is a worker, as the parent sees it.
type member struct {
	name   string
	cmd    *exec.Cmd
	stdin  io.WriteCloser // for orders; its end ends the worker
	stderr bytes.Buffer   // read after exited
	err    error          // how it ended; read after exited
	exited chan struct{}
	killed bool // by us
}

// hire starts a worker.
func (c *crew) hire(job assignment) error {
	program, err := os.Executable()
	if err != nil {
		return err
	}
	text, err := json.Marshal(job)
	if err != nil {
		return err
	}
	m := &member{name: job.Name, cmd: exec.Command(program), exited: make(chan struct{})}
	m.cmd.Env = append(os.Environ(), workerVariable+"="+string(text))
	m.cmd.SysProcAttr = workerAttr()
	m.cmd.Stderr = &m.stderr
	out, err := m.cmd.StdoutPipe()
	if err == nil {
		m.stdin, err = m.cmd.StdinPipe()
	}
	if err == nil {
		err = m.cmd.Start()
	}
	if err != nil {
		return fmt.Errorf("worker %s: %w", m.name, err)
	}
	c.members = append(c.members, m)
	go func() {
		defer close(m.exited)
		lines := json.NewDecoder(out)
		for {
			var e event
			if lines.Decode(&e) != nil {
				break
			}
			c.events <- e
		}
		m.err = m.cmd.Wait()
	}()
	return nil
}

func (m *member) pid() int { return m.cmd.Process.Pid }

// order writes a line to the worker, which may have ended: then failure finds it.
func (m *member) order(line string) { _, _ = fmt.Fprintln(m.stdin, line) }

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
		for !m.ended() {
			c.hear(time.Millisecond)
		}
		m.stdin.Close()
	}
}

// hear takes one report, or waits for that time.
func (c *crew) hear(wait time.Duration) {
	select { // if both are ready, the report is heard the next time
	case e := <-c.events:
		c.heard = append(c.heard, e)
	case <-time.After(wait):
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

// until hears reports until done returns true. It fails when a worker does, when ctx ends, or after
// patience. The error says what it waited for.
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
		if c.hear(10 * time.Millisecond); ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
}

// reports returns the reports of these kinds with newer tokens than that.
func (c *crew) reports(newer int64, kinds string) (all []event) {
	for _, e := range c.heard {
		if e.Token > newer && strings.Contains(kinds, e.Kind) {
			all = append(all, e)
		}
	}
	return all
}

// untilHeard waits for n such reports.
func (c *crew) untilHeard(ctx context.Context, what string, n int, newer int64, kinds string) error {
	return c.until(ctx, what, func() (bool, error) { return len(c.reports(newer, kinds)) >= n, nil })
}
