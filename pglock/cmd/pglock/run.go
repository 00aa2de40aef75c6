package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/pglock/pglock-go/internal/errs"
	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/schedule"
)

const (
	defaultTTL   = 30 * time.Second
	defaultGrace = 10 * time.Second
	forever      = 10 * 365 * 24 * time.Hour // without --wait
)

type runFlags struct {
	*globals
	console
	onceFlags
	ttl, wait, grace time.Duration
	labels           []string
	labelMap         map[string]string
	busyStatus       int
	permits, weight  int // permits 0: the lock has one holder
	read, write      bool
	also             []string
	obeys            bool // a request to release the lock
	supersede        bool

	election bool // of pglock lead
	payload  string
	http     string
	lease    atomic.Pointer[pglock.Lease] // of this host's last term
}

func newRun(g *globals) *cobra.Command {
	f := &runFlags{globals: g}
	cmd := f.command("run", "Run a command while holding a lock", help("run_examples"))
	flags := cmd.Flags()
	flags.DurationVar(&f.wait, "wait", 0, "how long to wait for the lock, 0 to try once (default: without limit).\nIt does not limit the command")
	flags.IntVar(&f.permits, "permits", 0, "make NAME a semaphore: up to this many hosts hold it at the same time")
	flags.IntVar(&f.weight, "weight", 1, "with --permits: how many of them this command needs")
	flags.BoolVar(&f.read, "read", false, "make NAME a readers-writer lock, and hold it together with other readers")
	flags.BoolVar(&f.write, "write", false, "make NAME a readers-writer lock, and hold it alone")
	flags.StringArrayVar(&f.also, "also", nil, "another lock, as `NAME`, to hold together with NAME: all or none; may be repeated")
	flags.BoolVar(&f.supersede, "supersede", false, "the newest run wins: end earlier runs with this flag that wait, and ask the one that runs to stop;\nimplies --stop-when-asked")
	flags.IntVar(&f.busyStatus, "busy-status", statusNotAcquired, "the exit status if the lock is not granted in time, 0 to 255")
	f.graceFlag(cmd)
	f.register(cmd)
	return cmd
}

// command returns a command that runs another one, with the flags of a holder.
func (f *runFlags) command(name, short, example string) *cobra.Command {
	cmd := &cobra.Command{
		Use:                   name + " [flags] NAME -- COMMAND [ARGUMENT...]",
		Short:                 short,
		Long:                  help(name),
		Example:               example,
		DisableFlagsInUseLine: true,
		Args:                  nameAndCommand,
		ValidArgsFunction:     f.completeName,
		RunE:                  f.runE,
	}
	flags := cmd.Flags()
	flags.DurationVar(&f.ttl, "ttl", defaultTTL, "how long the lock stays held if this host dies")
	flags.StringVar(&f.holder, "holder", "", "the name of the holder, as others see it (default: host, process id, random part)")
	flags.StringArrayVar(&f.labels, "label", nil, "a label to store with the lock, as `key=value`; may be repeated")
	flags.BoolVar(&f.obeys, "stop-when-asked", false, "end when somebody asks for the lock, as pglock ask does (default: only say so)")
	flags.BoolVarP(&f.quiet, "quiet", "q", false, "do not print that the command waits, or why it does not run")
	return cmd
}

func (f *runFlags) graceFlag(cmd *cobra.Command) {
	cmd.Flags().DurationVar(&f.grace, "grace", 0, fmt.Sprintf(
		"how long the command may take to end when the lock is lost:\nless than half of --ttl (default %v, but at most a third of --ttl)", defaultGrace))
}

func (f *runFlags) runE(cmd *cobra.Command, args []string) error {
	options, err := f.check(cmd)
	if err != nil {
		return err
	}
	err = f.run(append([]string{args[0]}, f.also...), args[1:], options)
	if f.election && len(args) == 1 && exitStatusOf(err) == statusSignal+int(syscall.SIGTERM) {
		return nil // TERM is how a sidecar ends, also before it leads
	}
	if isAny(err, pglock.ErrInvalidOption, pglock.ErrKind, schedule.ErrZone) {
		return usage(cmd, "%s", errs.Reason(err))
	}
	return err
}

func nameAndCommand(cmd *cobra.Command, args []string) error {
	switch before := cmd.ArgsLenAtDash(); {
	case len(args) == 0 || before == 0:
		return usage(cmd, "no lock name is given")
	case before < 0:
		return usage(cmd, "-- is missing: write %s NAME -- COMMAND", cmd.CommandPath())
	case before > 1:
		return usage(cmd, "more than one argument before --: must be the lock's name only")
	case len(args) == 1:
		return usage(cmd, "no command is given after --")
	}
	return nil
}

// check completes the flags and refuses invalid ones before pglock connects. pglock.Open checks the
// options that it returns.
func (f *runFlags) check(cmd *cobra.Command) ([]pglock.Option, error) {
	switch {
	case f.wait < 0:
		return nil, usage(cmd, "--wait %v is negative: must be 0 or more", f.wait)
	case f.grace < 0:
		return nil, usage(cmd, "--grace %v is negative: must be 0 or more", f.grace)
	case f.ttl <= 0:
		return nil, usage(cmd, "--ttl %v is too short: must be more than 0", f.ttl)
	case f.grace >= f.ttl-f.grace:
		return nil, usage(cmd, "--grace %v is too long for --ttl %v: must be less than half of it, so that the command has ended before another host can get the lock", f.grace, f.ttl)
	case cmd.Flags().Changed("permits") && (f.permits < 1 || f.permits > pglock.MaxPermits):
		return nil, usage(cmd, "--permits %d is out of range: must be 1 to %d", f.permits, pglock.MaxPermits)
	case cmd.Flags().Changed("weight") && (f.weight < 1 || f.weight > f.permits):
		return nil, usage(cmd, "--weight %d is out of range: must be 1 to the number of --permits", f.weight)
	case f.busyStatus < 0 || f.busyStatus > 255:
		return nil, usage(cmd, "--busy-status %d is out of range: must be 0 to 255", f.busyStatus)
	}
	if !cmd.Flags().Changed("wait") {
		f.wait = forever
	}
	if flag := cmd.Flags().Lookup("grace"); flag != nil && !flag.Changed {
		f.grace = min(defaultGrace, f.ttl/3)
	}
	if err := f.onceFlags.check(cmd); err != nil {
		return nil, err
	}
	kinds := slices.DeleteFunc([]bool{f.permits > 0, f.read, f.write, len(f.also) > 0, f.given(), f.supersede}, func(given bool) bool { return !given })
	if len(kinds) > 1 {
		return nil, usage(cmd, "--permits, --read, --write, --also, --tick, --once-per and --supersede exclude each other: must be one of them")
	}
	var err error
	if f.labelMap, err = labelMap(f.labels); err != nil {
		return nil, usage(cmd, "%s", err.Error())
	}
	options := append(f.timing(), pglock.WithSchema(f.schema), pglock.WithLabels(f.labelMap))
	if f.supersede {
		f.obeys = true
		options = append(options, pglock.WithSupersede())
	}
	if cmd.Flags().Changed("holder") {
		options = append(options, pglock.WithHolder(f.holder))
	}
	return options, nil
}

func labelMap(flags []string) (map[string]string, error) {
	labels := map[string]string{}
	for _, label := range flags {
		key, value, found := strings.Cut(label, "=")
		if _, twice := labels[key]; !found || key == "" || twice {
			return nil, errors.New("a --label is invalid: must be key=value, each key once")
		}
		labels[key] = value
	}
	return labels, nil
}

// spare is the part of the TTL for the KILL and for clocks that run at different rates.
func (f *runFlags) spare() time.Duration { return min(f.ttl/20, 5*time.Second) }

// timing makes the grace a part of the lease's safety margin. If the lease can't be renewed, the
// command gets TERM, and KILL after the grace, before the server lets the lease expire; the spare
// time is between the KILL and the expiry. Renewals are more frequent than by default, so that a
// short outage does not end the lease.
//
// Since the grace is less than half of the TTL, at least 0.45 TTL remain for renewals.
func (f *runFlags) timing() []pglock.Option {
	margin := f.grace + f.spare()
	return []pglock.Option{
		pglock.WithTTL(f.ttl),
		pglock.WithSafetyMargin(margin),
		pglock.WithRenewEvery((f.ttl - margin) / 4),
		pglock.WithMaxConns(2), // the minimum
	}
}
