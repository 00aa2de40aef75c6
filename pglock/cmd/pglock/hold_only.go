package main

import (
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/pglock/pglock-go/pglock"
)

func newHold(g *globals) *cobra.Command {
	var ttl, wait time.Duration
	var labels []string
	cmd := &cobra.Command{
		Use:               "hold NAME",
		Short:             "Hold a lock until interrupted",
		Long:              help("hold"),
		Args:              lockName,
		ValidArgsFunction: g.completeName,
	}
	flags := cmd.Flags()
	flags.DurationVar(&ttl, "ttl", defaultTTL, "how long the lock stays held if this host dies")
	flags.DurationVar(&wait, "wait", forever, "how long to wait for the lock, 0 to try once (default: without limit)")
	flags.Lookup("wait").DefValue = "0s"
	flags.StringArrayVar(&labels, "label", nil, "a label to store with the lock, as `key=value`; may be repeated")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		stored, err := labelMap(labels)
		if err != nil {
			return usage(cmd, "%s", err.Error())
		}
		return g.holdOnly(cmd.OutOrStdout(), args[0], pglock.WithSchema(g.schema), pglock.WithMaxConns(2), pglock.WithTTL(ttl), pglock.WithWait(wait), pglock.WithLabels(stored))
	}
	return cmd
}

// holdOnly holds a lock until a signal, which then is no error.
func (g *globals) holdOnly(out io.Writer, name string, options ...pglock.Option) error {
	signals := listenSignals()
	defer signals.stop()
	ctx, stop := signals.untilInterrupted()
	defer stop()
	client, closeClient, err := g.open(ctx, options)
	if err != nil {
		return interruptedOr(ctx, err)
	}
	defer closeClient(exitTimeout) // releases the lock
	lease, err := client.Acquire(ctx, name)
	if err != nil {
		return interruptedOr(ctx, g.explainPrivilege(err))
	}
	if _, err := fmt.Fprintln(out, lease.Fence()); err != nil {
		return err
	}
	select {
	case <-lease.Done():
		return lease.Err()
	case <-ctx.Done():
		return nil
	}
}
