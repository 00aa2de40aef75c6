package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/cmd/pglock/internal/text"
	"github.com/pglock/pglock-go/pglock/inspect"
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
			s, err := client.Snapshot(ctx, inspect.Query{Filter: inspect.Filter{Held: true}, Limit: mostKeys})
			if err != nil {
				return err
			}
			t := newTable(out)
			fmt.Fprintln(t, "KEY\tSTATE\tHOLDER\tTOKEN\tSTARTED\tAGO")
			for _, a := range s.Once {
				fmt.Fprintf(t, "%s\t%s\t%s\t%d\t%s\t%s\n", text.Plain(a.Key), onceState("started", a.Running), text.Plain(a.Holder), a.Token,
					a.StartedAt.UTC().Format(time.RFC3339), text.Short(s.At.Sub(a.StartedAt)))
			}
			if s.Server.Started > len(s.Once) {
				fmt.Fprintf(t, "and %d more\n", s.Server.Started-len(s.Once))
			}
			return t.Flush()
		}),
	}
	show := &cobra.Command{
		Use:   "show KEY",
		Short: "Show what is recorded for a key",
		Args:  onceKey,
		RunE: g.withPool(func(ctx context.Context, pool *pgxpool.Pool, out io.Writer, key string) error {
			i, err := once.Get(ctx, pool, key, once.WithSchema(g.schema))
			if err != nil {
				return err
			}
			t := lines{newTable(out)}
			t.add("key", "%s", text.Plain(i.Key))
			t.add("state", "%s", onceState(i.State, i.Running))
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

// mostKeys is how many keys are listed.
const mostKeys = 1000

// onceState says in one word what is known of an effect.
func onceState(state string, running bool) string {
	switch {
	case running:
		return "running"
	case state == "started":
		return "unknown"
	}
	return state
}

func newResolve(g *globals) *cobra.Command {
	var happened, didNot bool
	var token int64
	cmd := &cobra.Command{
		Use:   "resolve KEY",
		Short: "End an attempt whose outcome is unknown, after you have found out whether its effect happened",
		Long:  help("once"),
		Args: func(cmd *cobra.Command, args []string) error {
			if err := onceKey(cmd, args); err != nil {
				return err
			}
			if happened == didNot {
				return usage(cmd, "say whether the effect happened: with --happened or --did-not-happen")
			}
			return nil
		},
		RunE: g.withPool(func(ctx context.Context, pool *pgxpool.Pool, out io.Writer, key string) error {
			in := once.WithSchema(g.schema)
			attempt := pglock.Token(token)
			if attempt == 0 {
				i, err := once.Get(ctx, pool, key, in)
				if err != nil {
					return err
				}
				attempt = i.Token
			}
			if err := once.Resolve(ctx, pool, key, attempt, happened, in); err != nil {
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
	cmd.Flags().Int64Var(&token, "token", 0, "only the attempt with this `token` (default: the last one)")
	return cmd
}

// onceKey checks that the only argument is a key.
func onceKey(cmd *cobra.Command, args []string) error {
	if len(args) != 1 {
		return usage(cmd, "%d arguments are given: must be the key", len(args))
	}
	return nil
}

// withPool returns a command's function that calls fn with a pool, stdout and the only argument.
func (g *globals) withPool(fn func(context.Context, *pgxpool.Pool, io.Writer, string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		return interruptible(func(ctx context.Context) error {
			pool, err := g.openPool(ctx)
			if err != nil {
				return err
			}
			defer pool.Close()
			err = fn(ctx, pool, cmd.OutOrStdout(), args[0])
			if isAny(err, once.ErrNotFound, once.ErrInProgress) {
				return &failure{statusNoGrant, err}
			}
			if errors.Is(err, once.ErrInvalidKey) {
				return &failure{statusUsage, err}
			}
			return g.explainPrivilege(g.database().explainConnect(err))
		})
	}
}
