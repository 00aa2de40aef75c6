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

	"github.com/pglock/pglock-go/internal/backoff"
)

// outage is how long a leader is paused or cut off: longer than Patroni's ttl and a failover.
const outage = 40 * time.Second

// fault is something that happens to the leader. begin begins it, and end repairs what it broke.
type fault struct {
	name, what string
	lasts      time.Duration
	begin, end []step
}

// step does something to a node.
type step func(c *cluster, ctx context.Context, n *node) error

// faults are all faults, in the order in which they happen.
var faults = []fault{
	{"switchover", "an operator moves the leader", 0, []step{(*cluster).switchover}, nil},
	{"kill", "Patroni and PostgreSQL of the leader are killed", outage,
		[]step{send(all, syscall.SIGKILL)}, []step{(*cluster).startNode}},
	{"pause", "Patroni and PostgreSQL of the leader are stopped, and resume after a failover", outage,
		[]step{send(all, syscall.SIGSTOP)}, []step{send(all, syscall.SIGCONT)}},
	{"pause-patroni", "only Patroni is stopped: the old primary serves its clients meanwhile", outage,
		[]step{send(patroni, syscall.SIGSTOP)}, []step{send(patroni, syscall.SIGCONT)}},
	{"cut", "the leader's network is cut; one client stays on its side", outage, []step{cable("down")}, []step{cable("up")}},
	{"cut-patroni", "the leader's network is cut while Patroni is stopped: nobody demotes the old primary", outage,
		[]step{send(patroni, syscall.SIGSTOP), cable("down")}, []step{cable("up"), send(patroni, syscall.SIGCONT)}},
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
	for _, begin := range f.begin {
		if err := begin(c, ctx, leader); err != nil {
			return m, err
		}
	}
	err = backoff.Sleep(ctx, f.lasts)
	for _, end := range f.end {
		err = errors.Join(err, end(c, ctx, leader))
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

// switchover asks Patroni for another leader.
func (c *cluster) switchover(ctx context.Context, n *node) error {
	return n.call(ctx, http.MethodPost, "/switchover", map[string]string{"leader": n.name}, nil)
}

// cable connects a node to the hub, or cuts it off. Packets are lost without a word.
func cable(state string) step {
	return func(_ *cluster, ctx context.Context, n *node) error {
		return exec.CommandContext(ctx, "ip", "link", "set", n.name, state).Run()
	}
}

func send(to func(command string) bool, s syscall.Signal) step {
	return func(_ *cluster, _ context.Context, n *node) error { return n.signal(to, s) }
}

// signal signals the chosen processes of a node. It fails if there is none.
func (n *node) signal(chosen func(command string) bool, s syscall.Signal) error {
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
