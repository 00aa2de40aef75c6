package main

import (
	_ "embed"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/pglock/pglock-go/pglock"
)

const (
	runName      = "run"
	defaultTTL   = 30 * time.Second
	defaultGrace = 10 * time.Second
)

//go:embed help/run.txt
var runHelp string

//go:embed help/run_examples.txt
var runExamples string

// runFlags are those of pglock run.
type runFlags struct {
	*globals
	console
	ttl, wait, grace time.Duration
	waitForEver      bool
	holder           string
	labels           []string
}

func newRun(g *globals) *cobra.Command {
	f := &runFlags{globals: g}
	cmd := &cobra.Command{
		Use:                   runName + " [flags] NAME -- COMMAND [ARGUMENT...]",
		Short:                 "Run a command while holding a lock",
		Long:                  strings.TrimSpace(runHelp),
		Example:               strings.TrimRight(runExamples, "\n"),
		DisableFlagsInUseLine: true,
		Args:                  nameAndCommand,
		RunE: func(cmd *cobra.Command, args []string) error {
			options, err := f.check(cmd)
			if err != nil {
				return err
			}
			err = f.run(args[0], args[1:], options)
			if isAny(err, pglock.ErrInvalidName, pglock.ErrInvalidOption, pglock.ErrInvalidSchema) {
				return usage(cmd, "%s", plain(err))
			}
			return err
		},
	}
	flags := cmd.Flags()
	flags.DurationVar(&f.ttl, "ttl", defaultTTL, "how long the lock stays taken if this host dies")
	flags.DurationVar(&f.wait, "wait", 0, "how long to wait for the lock, 0 to try once (default: for ever)")
	flags.DurationVar(&f.grace, "grace", 0, fmt.Sprintf(
		"how long the command may take to end when the lock is lost\n(default %v, a third of the TTL at most)", defaultGrace))
	flags.StringVar(&f.holder, "holder", "", "who holds the lock, for others to see (default: host, process id, random part)")
	flags.StringArrayVar(&f.labels, "label", nil, "stored with the lock as `key=value`, may be repeated")
	flags.BoolVarP(&f.quiet, "quiet", "q", false, "say nothing of waiting, or of a lock that is not granted")
	return cmd
}

// nameAndCommand checks for NAME -- COMMAND.
func nameAndCommand(cmd *cobra.Command, args []string) error {
	switch before := cmd.ArgsLenAtDash(); {
	case len(args) == 0 || before == 0:
		return usage(cmd, "no lock name is given")
	case before < 0:
		return usage(cmd, "the command comes after --, as in %s NAME -- COMMAND", cmd.CommandPath())
	case before > 1:
		return usage(cmd, "more than the lock's name is in front of --")
	case len(args) == 1:
		return usage(cmd, "no command is given after --")
	}
	return nil
}

// check completes the flags, and refuses what makes no sense before anything is
// connected to. The options of the lock check themselves.
func (f *runFlags) check(cmd *cobra.Command) ([]pglock.Option, error) {
	f.waitForEver = !cmd.Flags().Changed("wait")
	switch {
	case f.wait < 0:
		return nil, usage(cmd, "--wait can't be negative")
	case f.grace < 0:
		return nil, usage(cmd, "--grace can't be negative")
	case f.ttl <= 0:
		return nil, usage(cmd, "--ttl must be positive")
	}
	if !cmd.Flags().Changed("grace") {
		f.grace = min(defaultGrace, f.ttl/3)
	}
	labels := map[string]string{}
	for _, label := range f.labels {
		key, value, found := strings.Cut(label, "=")
		if _, twice := labels[key]; !found || key == "" || twice {
			return nil, usage(cmd, "a --label is not key=value, or its key is given twice")
		}
		labels[key] = value
	}
	options := append(f.timing(), pglock.WithSchema(f.schemaName()), pglock.WithLabels(labels))
	if cmd.Flags().Changed("holder") {
		options = append(options, pglock.WithHolder(f.holder))
	}
	return options, nil
}

// timing takes the command's grace from the lease, up to half of it: when the lease
// can't be renewed, the command is told to end, and has been killed if it did not,
// before the server lets the lease expire. A twentieth of the TTL, 5 s at most, is
// for the killing, and for clocks that run at different rates. Renewals are more
// frequent in turn, so that a short outage still does no harm.
func (f *runFlags) timing() []pglock.Option {
	margin := min(f.grace+min(f.ttl/20, 5*time.Second), f.ttl/2)
	return []pglock.Option{
		pglock.WithTTL(f.ttl),
		pglock.WithSafetyMargin(margin),
		pglock.WithRenewEvery((f.ttl - margin) / 4),
		pglock.WithMaxConns(2), // the least
	}
}
