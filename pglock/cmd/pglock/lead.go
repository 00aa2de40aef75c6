package main

import (
	"context"
	"errors"

	"github.com/spf13/cobra"

	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/internal/text"
	"github.com/pglock/pglock-go/pglock/leader"
)

func newLead(g *globals) *cobra.Command {
	f := &runFlags{globals: g, election: true}
	cmd := f.command("lead", "Run a command while this host is the leader", `  pglock lead --payload "$(hostname):8080" scheduler -- ./scheduler`)
	cmd.Flags().StringVar(&f.http, "http", "", "tell over HTTP at this `address` who leads, like 127.0.0.1:4040: /leader, /self, /healthz")
	cmd.Flags().StringVar(&f.payload, "payload", "", "what others see of the leader, at most 16 KiB with its labels")
	f.graceFlag(cmd)
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if f.http != "" && len(args) == 1 && cmd.ArgsLenAtDash() < 0 {
			return nil // a sidecar leads without a command
		}
		return nameAndCommand(cmd, args)
	}
	return cmd
}

// errLeadershipLost is the error of a command that was stopped, because its leadership was lost.
var errLeadershipLost = errors.New("the leadership is lost")

// campaign waits until this host leads. If there is another leader, it prints it first.
func (f *runFlags) campaign(ctx context.Context, client *pglock.Client, name string) (*grant, error) {
	e, err := leader.New(client, name)
	if err != nil {
		return nil, err
	}
	l, err := e.Leader(ctx)
	if err == nil {
		f.infof("waiting: %q is led by %s (token %d): %s", name, text.Plain(l.Name), l.Token, text.Plain(l.Payload))
	}
	t, err := e.Campaign(ctx, f.payload)
	if err != nil {
		return nil, err
	}
	f.lease.Store(t.Lease())
	if l.Elected() {
		f.infof("this host leads %q (token %d)", name, t.Lease().Token())
	}
	return &grant{lease: t.Lease(), end: func(ctx context.Context, _ int) error { return t.Resign(ctx) }}, nil
}
