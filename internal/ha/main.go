//go:build linux

package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"syscall"
	"time"

	"github.com/pglock/pglock-go/internal/backoff"
)

// Exit statuses.
const (
	exitViolated   = 1
	exitUsage      = 64
	exitImpossible = 69
)

// insideVariable has the kind of replication, sync or async, in a process that has the hub's network.
const insideVariable = "PGLOCK_HA_INSIDE"

// errImpossible says why the experiment can't run here.
var errImpossible = errors.New("not run")

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	status := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(status)
}

func run(ctx context.Context, args []string, out, problems io.Writer) int {
	if len(args) > 0 && args[0] == "worker" {
		if err := work(ctx, args[1:], out); err != nil {
			fmt.Fprintln(problems, "ha worker:", err)
			return exitViolated
		}
		return 0
	}
	flags := flag.NewFlagSet("ha", flag.ContinueOnError)
	flags.SetOutput(problems)
	replication := flags.String("replication", "both", "sync, async or both")
	err := flags.Parse(args)
	if err != nil || flags.NArg() > 0 || !slices.Contains([]string{"sync", "async", "both"}, *replication) {
		fmt.Fprintln(problems, "ha: invalid argument:", args, err)
		return exitUsage
	}
	if kind := os.Getenv(insideVariable); kind != "" {
		err = experiment(ctx, out, kind == "sync")
	} else {
		for _, kind := range []string{"sync", "async"} {
			if *replication == "both" || *replication == kind {
				err = errors.Join(err, runInside(ctx, kind, args))
			}
		}
	}
	if err == nil {
		return 0
	}
	fmt.Fprintln(problems, "ha:", err)
	if errors.Is(err, errImpossible) {
		return exitImpossible
	}
	return exitViolated
}

// runInside runs this program again, as the hub of an experiment: with a network of its own, and with
// mounts of its own, so that the names of the nodes' namespaces are gone when it ends.
func runInside(ctx context.Context, kind string, args []string) error {
	if os.Getuid() != 0 {
		return fmt.Errorf("%w: network namespaces need root", errImpossible)
	}
	for _, program := range []string{"ip", "patroni", "etcd", "setpriv"} {
		if _, err := exec.LookPath(program); err != nil {
			return fmt.Errorf("%w: %s is missing: install patroni, etcd-server and iproute2", errImpossible, program)
		}
	}
	hub := exec.CommandContext(ctx, "/proc/self/exe", args...)
	hub.Cancel = func() error { return hub.Process.Signal(os.Interrupt) } // and wait for its end
	hub.Env = append(os.Environ(), insideVariable+"="+kind)
	hub.Stdout, hub.Stderr = os.Stdout, os.Stderr
	hub.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWNS, Setpgid: true}
	if err := hub.Run(); err != nil {
		return fmt.Errorf("%s replication: %w", kind, err)
	}
	return nil
}

// experiment runs the faults one after the other on a new cluster, and checks the history. After a
// failure it leaves the logs and histories.
func experiment(ctx context.Context, out io.Writer, sync bool) (err error) {
	fmt.Fprintf(out, "\n%s replication, %d faults\n", os.Getenv(insideVariable), len(faults))
	c, err := newCluster(ctx, sync)
	if err != nil {
		return err
	}
	defer func() {
		c.stop()
		if err != nil {
			fmt.Fprintf(out, "logs and histories: %s\n", c.dir)
			return
		}
		err = os.RemoveAll(c.dir)
	}()
	if err := c.start(ctx); err != nil {
		return err
	}
	if err := c.startWorkers(); err != nil {
		return err
	}
	var marks []mark
	for _, f := range faults {
		if err := backoff.Sleep(ctx, steadyTime); err != nil {
			return err
		}
		m, err := c.inflict(ctx, f)
		if err != nil {
			return fmt.Errorf("%s: %w", f.name, err)
		}
		marks = append(marks, m)
		fmt.Fprintf(out, "  %s: %s → %s after %v\n", f.name, m.leader, m.next, m.ok.Sub(m.began).Round(time.Second))
	}
	if err := backoff.Sleep(ctx, steadyTime); err != nil {
		return err
	}
	histories, err := c.stopWorkers()
	if err != nil {
		return err
	}
	ledger, err := c.ledger(ctx)
	if err != nil {
		return err
	}
	r := check(histories, ledger)
	fmt.Fprint(out, r.report(marks))
	if bad := r.violations(sync); bad != "" {
		return fmt.Errorf("violated: %s", bad)
	}
	return nil
}
