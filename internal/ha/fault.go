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
	fault            fault
	began, ended, ok time.Time // ok: the cluster was ready again
	leader, next     string
}

// inflict lets a fault happen to the leader and waits until the cluster is whole again.
func (c *cluster) inflict(ctx context.Context, f fault) (mark, error) {
	leader, err := c.awaitReady(ctx)
	if err != nil {
		return mark{}, err
	}
	m := mark{fault: f, began: time.Now(), leader: leader.name}
	if err := f.begin(ctx, c, leader); err != nil {
		return m, err
	}
	err = sleep(ctx, f.lasts)
	m.ended = time.Now()
	if f.end != nil {
		err = errors.Join(err, f.end(ctx, c, leader))
	}
	if err != nil {
		return m, err
	}
	if f.lasts == 0 { // Patroni answers before the old leader is a standby
		if err := c.awaitOther(ctx, leader); err != nil {
			return m, err
		}
	}
	next, err := c.awaitReady(ctx)
	if err != nil {
		return m, err
	}
	m.ok, m.next = time.Now(), next.name
	if next == leader {
		return m, fmt.Errorf("%s is still the leader", leader.name)
	}
	return m, nil
}

// awaitOther waits for another leader.
func (c *cluster) awaitOther(ctx context.Context, old *node) error {
	ctx, cancel := context.WithTimeout(ctx, readyTime)
	defer cancel()
	for {
		members, _ := c.members(ctx, nil)
		if n := c.leader(members); n != nil && n != old {
			return nil
		}
		if err := sleep(ctx, 100*time.Millisecond); err != nil {
			return fmt.Errorf("no other leader than %s: %w", old.name, err)
		}
	}
}

// cable connects a node to the hub, or cuts it off. Packets are lost without a word.
func (c *cluster) cable(ctx context.Context, n *node, state string) error {
	return exec.CommandContext(ctx, "ip", "-n", c.tag, "link", "set", n.link, state).Run()
}

// signal signals the chosen processes of a node, but not its worker.
func (c *cluster) signal(n *node, chosen func(command string) bool, s syscall.Signal) error {
	var pids []int
	for _, pid := range inNamespace(n.namespace) {
		if command := commandOf(pid); chosen(command) {
			pids = append(pids, pid)
		}
	}
	if len(pids) == 0 {
		return fmt.Errorf("%s: no process to signal", n.name)
	}
	signalAll(pids, s)
	return nil
}

func all(command string) bool     { return patroni(command) || strings.HasPrefix(command, "postgres") }
func patroni(command string) bool { return command == "patroni" }

// commandOf returns the name of a process, or "" if it has ended.
func commandOf(pid int) string {
	text, _ := os.ReadFile(filepath.Join("/proc", fmt.Sprint(pid), "comm"))
	return strings.TrimSpace(string(text))
}
