//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// outage is how long a leader is paused or cut off: longer than Patroni's ttl and a failover.
const outage = 40 * time.Second

// fault is something that happens to the leader. begin begins it, and end repairs what it broke.
type fault struct {
	name, what string
	lasts      time.Duration
	begin, end func(ctx context.Context, c *cluster, leader *node) error
}

// faults are all faults, in the order in which they happen.
var faults = []fault{
	{
		name: "switchover", what: "an operator moves the leader",
		begin: func(ctx context.Context, c *cluster, leader *node) error {
			return c.call(ctx, leader, http.MethodPost, "/switchover", map[string]string{"leader": leader.name}, nil)
		},
	},
	{
		name: "kill", what: "Patroni and PostgreSQL of the leader are killed", lasts: outage,
		begin: func(_ context.Context, c *cluster, leader *node) error { return c.signal(leader, all, syscall.SIGKILL) },
		end:   func(_ context.Context, c *cluster, leader *node) error { return c.startNode(leader) },
	},
	{
		name: "pause", what: "Patroni and PostgreSQL of the leader are stopped, and resume after a failover", lasts: outage,
		begin: func(_ context.Context, c *cluster, leader *node) error { return c.signal(leader, all, syscall.SIGSTOP) },
		end:   func(_ context.Context, c *cluster, leader *node) error { return c.signal(leader, all, syscall.SIGCONT) },
	},
	{
		name: "pause-patroni", what: "only Patroni is stopped: the old primary serves its clients meanwhile", lasts: outage,
		begin: func(_ context.Context, c *cluster, leader *node) error {
			return c.signal(leader, patroni, syscall.SIGSTOP)
		},
		end: func(_ context.Context, c *cluster, leader *node) error {
			return c.signal(leader, patroni, syscall.SIGCONT)
		},
	},
	{
		name: "cut", what: "the leader's network is cut; one client stays on its side", lasts: outage,
		begin: func(ctx context.Context, c *cluster, leader *node) error { return c.cable(ctx, leader, "down") },
		end:   func(ctx context.Context, c *cluster, leader *node) error { return c.cable(ctx, leader, "up") },
	},
	{
		name: "cut-patroni", what: "the leader's network is cut while Patroni is stopped: nobody demotes the old primary", lasts: outage,
		begin: func(ctx context.Context, c *cluster, leader *node) error {
			return errors.Join(c.signal(leader, patroni, syscall.SIGSTOP), c.cable(ctx, leader, "down"))
		},
		end: func(ctx context.Context, c *cluster, leader *node) error {
			return errors.Join(c.cable(ctx, leader, "up"), c.signal(leader, patroni, syscall.SIGCONT))
		},
	},
}

// mark says when a fault happened.
type mark struct {
	fault        fault
	began, ok    time.Time // ok: the cluster was ready again
	leader, next string
}

// inflict lets a fault happen to the leader and waits until the cluster is whole again.
func (c *cluster) inflict(ctx context.Context, f fault) (mark, error) {
	leader, err := c.awaitReady(ctx, nil)
	if err != nil {
		return mark{}, err
	}
	m := mark{fault: f, began: time.Now(), leader: leader.name}
	if err := f.begin(ctx, c, leader); err != nil {
		return m, err
	}
	err = sleep(ctx, f.lasts)
	if f.end != nil {
		err = errors.Join(err, f.end(ctx, c, leader))
	}
	if err != nil {
		return m, err
	}
	next, err := c.awaitReady(ctx, leader)
	if err != nil {
		return m, err
	}
	m.ok, m.next = time.Now(), next.name
	return m, nil
}

// cable connects a node to the hub, or cuts it off. Packets are lost without a word.
func (c *cluster) cable(ctx context.Context, n *node, state string) error {
	return exec.CommandContext(ctx, "ip", "link", "set", n.name, state).Run()
}

// signal signals the chosen processes of a node. It fails if there is none.
func (c *cluster) signal(n *node, chosen func(command string) bool, s syscall.Signal) error {
	pids, err := exec.CommandContext(context.Background(), "ip", "netns", "pids", n.name).Output()
	if err != nil {
		return fmt.Errorf("the processes of %s: %w", n.name, err)
	}
	signaled := 0
	for field := range strings.FieldsSeq(string(pids)) {
		pid, _ := strconv.Atoi(field)                                 // a number, as ip says
		name, _ := os.ReadFile(filepath.Join("/proc", field, "comm")) // "" if it has ended
		if chosen(strings.TrimSpace(string(name))) {
			_ = syscall.Kill(pid, s) // it may have ended
			signaled++
		}
	}
	if signaled == 0 {
		return fmt.Errorf("%s: no process to signal", n.name)
	}
	return nil
}

// all are the processes of a node without its worker.
func all(command string) bool     { return patroni(command) || strings.HasPrefix(command, "postgres") }
func patroni(command string) bool { return command == "patroni" }
