package main

import (
	"context"
	"errors"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/charmbracelet/x/term"
	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"

	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/cmd/pglock/internal/doctor"
	"github.com/pglock/pglock-go/pglock/cmd/pglock/internal/top"
	"github.com/pglock/pglock-go/pglock/once"
)

func newTop(g *globals) *cobra.Command {
	var asText bool
	c := top.Config{Show: show, Export: printJSON, Help: help("top"), Operator: operator()}
	screens := top.Screens()
	cmd := &cobra.Command{
		Use:   "top",
		Short: "Watch locks, waiters and what blocks, in the whole terminal",
		Long:  c.Help,
		Args: func(cmd *cobra.Command, args []string) error {
			switch {
			case c.Screen != "" && !slices.Contains(screens, c.Screen):
				return usage(cmd, "--screen is unknown: must be one of %s", strings.Join(screens, ", "))
			case c.Every < 100*time.Millisecond:
				return usage(cmd, "--every %v is too short: must be 100ms or more", c.Every)
			}
			return noArguments(cmd, args)
		},
		RunE: g.withClient(func(ctx context.Context, client *pglock.Client, out io.Writer, _ []string) error {
			c.Client = client
			c.Doctor = func(ctx context.Context) []doctor.Result { return g.checks(ctx, doctor.Screen) }
			c.Resolve = func(ctx context.Context, key string, token pglock.Token, happened bool, reason string) error {
				return client.WithConn(ctx, func(conn *pgx.Conn) error {
					return once.Resolve(ctx, conn, key, token, happened, once.WithSchema(g.schema), once.WithReason(reason))
				})
			}
			switch {
			case asText:
				return top.Once(ctx, c, out)
			case !term.IsTerminal(os.Stdin.Fd()) || !term.IsTerminal(os.Stdout.Fd()) || os.Getenv("TERM") == "dumb":
				return &failure{statusUsage, errors.New("this is no terminal with a screen: use --once")}
			}
			return interruptedOr(ctx, top.Run(ctx, c))
		}),
	}
	flags := cmd.Flags()
	flags.BoolVar(&asText, "once", false, "print what there is as plain text, and end")
	flags.BoolVar(&c.ReadOnly, "read-only", false, "without the keys that ask for a release or revoke a grant")
	flags.DurationVar(&c.Every, "every", 2*time.Second, "read so often, but spend at most 1 % of the time with it")
	flags.StringVar(&c.Filter, "filter", "", "show only names with this part, or of this pattern (* and ?), or @HOLDER")
	flags.StringVar(&c.Screen, "screen", "", "begin with this `screen`, and with --once print only this one:\n"+strings.Join(screens, ", "))
	return cmd
}

func (g *globals) checks(ctx context.Context, role string) []doctor.Result {
	database := g.database()
	config, err := database.config()
	if err != nil {
		return []doctor.Result{{Check: "connection", Level: doctor.Fail, Found: err.Error()}}
	}
	return doctor.Run(ctx, doctor.Config{
		Conn: config.ConnConfig, Schema: g.schema, Role: role, Limits: doctor.DefaultLimits(), ExplainConnect: database.explainConnect,
	})
}
