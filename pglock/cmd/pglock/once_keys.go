package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/user"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"

	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/cmd/pglock/internal/top"
	"github.com/pglock/pglock-go/pglock/internal/display"
	"github.com/pglock/pglock-go/pglock/internal/text"
	"github.com/pglock/pglock-go/pglock/once"
)

func newOnce(g *globals) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "once",
		Short: "List, show and resolve idempotency keys without an outcome",
		Long:  help("once"),
		Args:  knownCommand,
		RunE:  commandMissing,
	}
	list := &cobra.Command{
		Use:   "ls",
		Short: "List the keys whose effect has begun and has no outcome",
		Args:  noArguments,
		RunE: g.withClient(func(ctx context.Context, client *pglock.Client, out io.Writer, _ []string) error {
			return top.Once(ctx, top.Config{Client: client, Screen: "once"}, out)
		}),
	}
	show := &cobra.Command{
		Use:   "show KEY",
		Short: "Show what is recorded for a key",
		Args:  only("key"),
		RunE: g.withKey(func(ctx context.Context, conn *pgx.Conn, out io.Writer, key string) error {
			i, err := once.Get(ctx, conn, key, once.WithSchema(g.schema))
			if err != nil {
				return err
			}
			state := i.State
			switch {
			case i.Running:
				state = "running"
			case state == "started":
				state = "unknown"
			}
			t := lines{newTable(out)}
			t.add("key", "%s", text.Plain(i.Key))
			t.add("state", "%s", state)
			t.add("holder", "%s", text.Plain(i.Holder))
			t.add("token", "%d", i.Token)
			t.add("first attempt", "%s", i.CreatedAt.UTC().Format(time.RFC3339))
			t.add("last attempt", "%s", i.StartedAt.UTC().Format(time.RFC3339))
			if !i.ExpiresAt.IsZero() {
				t.add("kept until", "%s", i.ExpiresAt.UTC().Format(time.RFC3339))
			}
			return t.Flush()
		}),
	}
	cmd.AddCommand(list, show, newResolve(g))
	return cmd
}

func newResolve(g *globals) *cobra.Command {
	var happened, didNot bool
	var token int64
	var reason string
	cmd := &cobra.Command{
		Use:   "resolve KEY",
		Short: "End an attempt whose outcome is unknown, after you have found out whether its effect happened",
		Long:  help("once"),
		Args: func(cmd *cobra.Command, args []string) error {
			if happened == didNot {
				return usage(cmd, "say whether the effect happened: with --happened or --did-not-happen")
			}
			return only("key")(cmd, args)
		},
		RunE: g.withKey(func(ctx context.Context, conn *pgx.Conn, out io.Writer, key string) error {
			in, attempt := once.WithSchema(g.schema), pglock.Token(token)
			if attempt == 0 {
				i, err := once.Get(ctx, conn, key, in)
				if err != nil {
					return err
				}
				attempt = i.Token
			}
			if err := once.Resolve(ctx, conn, key, attempt, happened, in, once.WithReason(display.By(reason, operator()))); err != nil {
				return err
			}
			what := "the next call runs the effect"
			if happened {
				what = "the effect happened, and calls are told so for 24 h"
			}
			_, err := fmt.Fprintf(out, "resolved key %s, token %d: %s\n", text.Plain(key), attempt, what)
			return err
		}),
	}
	cmd.Flags().BoolVar(&happened, "happened", false, "the effect happened: it must not run again")
	cmd.Flags().BoolVar(&didNot, "did-not-happen", false, "the effect did not happen: the next call runs it")
	cmd.Flags().StringVar(&reason, "reason", "", "how you know, for the record")
	cmd.Flags().Int64Var(&token, "token", 0, "only the attempt with this `token` (default: the last one)")
	return cmd
}

// withKey returns a command's function that calls fn with a connection and the only argument.
func (g *globals) withKey(fn func(context.Context, *pgx.Conn, io.Writer, string) error) func(*cobra.Command, []string) error {
	return g.withClient(func(ctx context.Context, client *pglock.Client, out io.Writer, args []string) error {
		return client.WithConn(ctx, func(conn *pgx.Conn) error { return fn(ctx, conn, out, args[0]) })
	})
}

// operator names the person who acts: the account and the host.
func operator() string {
	host, _ := os.Hostname()
	if u, err := user.Current(); err == nil {
		return u.Username + "@" + host
	}
	return host
}
