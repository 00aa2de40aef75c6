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
	"strings"
	"syscall"
	"time"
)

// Exit statuses.
const (
	exitViolated   = 1
	exitUsage      = 64
	exitImpossible = 69
)

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
	var o options
	flags := flag.NewFlagSet("ha", flag.ContinueOnError)
	flags.SetOutput(problems)
	flags.StringVar(&o.replication, "replication", "both", "sync, async or both")
	flags.StringVar(&o.faults, "faults", "", "names of faults, separated by commas; all without it")
	flags.BoolVar(&o.keep, "keep", false, "keep the directory with logs and histories")
	if err := flags.Parse(args); err != nil {
		return exitUsage
	}
	if err := o.check(flags.Args()); err != nil {
		fmt.Fprintln(problems, "ha:", err)
		return exitUsage
	}
	switch err := o.run(ctx, out); {
	case err == nil:
		return 0
	case errors.Is(err, errImpossible):
		fmt.Fprintln(problems, "ha:", err)
		return exitImpossible
	default:
		fmt.Fprintln(problems, "ha:", err)
		return exitViolated
	}
}

type options struct {
	replication, faults string
	keep                bool
}

func (o options) check(rest []string) error {
	if len(rest) > 0 {
		return fmt.Errorf("argument %q: there are only flags", rest[0])
	}
	switch o.replication {
	case "sync", "async", "both":
	default:
		return fmt.Errorf("replication %q: must be sync, async or both", o.replication)
	}
	_, err := chooseFaults(o.faults)
	return err
}

// run runs the experiments. It needs a network namespace of its own first, and starts itself there.
func (o options) run(ctx context.Context, out io.Writer) error {
	if os.Getuid() != 0 {
		return fmt.Errorf("%w: network namespaces need root", errImpossible)
	}
	for _, program := range []string{"ip", "patroni", "etcd", "setpriv"} {
		if _, err := exec.LookPath(program); err != nil {
			return fmt.Errorf("%w: %s is missing: install patroni, etcd-server and iproute2", errImpossible, program)
		}
	}
	faults, _ := chooseFaults(o.faults)
	var failed error
	for _, replication := range []string{"sync", "async"} {
		if o.replication != "both" && o.replication != replication {
			continue
		}
		began := time.Now()
		fmt.Fprintf(out, "\n%s replication, %d faults\n", replication, len(faults))
		if err := o.experiment(ctx, out, replication == "sync", faults); err != nil {
			failed = errors.Join(failed, fmt.Errorf("%s replication: %w", replication, err))
		}
		fmt.Fprintf(out, "%s replication took %v\n", replication, time.Since(began).Round(time.Second))
		if ctx.Err() != nil {
			return errors.Join(failed, ctx.Err())
		}
	}
	return failed
}

// experiment runs the faults one after the other on a new cluster, and checks the history.
func (o options) experiment(ctx context.Context, out io.Writer, sync bool, faults []fault) (err error) {
	c, err := newCluster(ctx, sync)
	if err != nil {
		return err
	}
	defer func() {
		c.stop()
		if o.keep || err != nil {
			fmt.Fprintf(out, "logs and histories: %s\n", c.dir)
			return
		}
		err = errors.Join(err, os.RemoveAll(c.dir))
	}()
	if err := c.start(ctx); err != nil {
		return err
	}
	if err := c.startWorkers(); err != nil {
		return err
	}
	var marks []mark
	for _, f := range faults {
		if err := sleep(ctx, steadyTime); err != nil {
			return err
		}
		m, err := c.inflict(ctx, f)
		if err != nil {
			return fmt.Errorf("%s: %w", f.name, err)
		}
		marks = append(marks, m)
		fmt.Fprintf(out, "  %s: %s → %s after %v\n", f.name, m.leader, m.next, m.ok.Sub(m.began).Round(time.Second))
	}
	if err := sleep(ctx, steadyTime); err != nil {
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

// sleep pauses the experiment.
func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// chooseFaults returns the faults with those names, or all.
func chooseFaults(names string) ([]fault, error) {
	if names == "" {
		return faults, nil
	}
	var chosen []fault
next:
	for name := range strings.SplitSeq(names, ",") {
		for _, f := range faults {
			if f.name == name {
				chosen = append(chosen, f)
				continue next
			}
		}
		return nil, fmt.Errorf("fault %q: is not known", name)
	}
	return chosen, nil
}
