package main

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/cmd/pglock/internal/text"
	"github.com/pglock/pglock-go/pglock/inspect"
)

// statusNoGrant is the exit status of pglock release if there is no such grant.
const statusNoGrant = 1

func newList(g *globals) *cobra.Command {
	var filter inspect.Filter
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "ls",
		Short: "List the locks with their holders and waiters",
		Long:  help("ls"),
		Args:  noArguments,
		RunE: g.withClient(func(ctx context.Context, client *pglock.Client, out io.Writer, _ []string) error {
			return list(ctx, client, filter, out, asJSON)
		}),
	}
	cmd.Flags().StringVar(&filter.Prefix, "prefix", "", "list only the locks whose name begins with `P`")
	cmd.Flags().BoolVar(&filter.Held, "held", false, "list only held locks")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON object a line")
	return cmd
}

// list prints the locks: as JSON while they are read, as a table when all are.
func list(ctx context.Context, client *pglock.Client, filter inspect.Filter, w io.Writer, asJSON bool) error {
	out := bufio.NewWriter(w)
	t := newTable(out)
	if !asJSON {
		fmt.Fprintln(t, "NAME\tSTATE\tHOLDER\tTOKEN\tSINCE\tREMAINING\tWAITERS\tLABELS")
	}
	for k, err := range client.Locks(ctx, filter) {
		switch {
		case err != nil:
		case asJSON:
			err = printJSON(out, k, false)
		default:
			addLock(t, k)
		}
		if err != nil {
			return errors.Join(t.Flush(), out.Flush(), err)
		}
	}
	return errors.Join(t.Flush(), out.Flush())
}

// addLock adds a line for each grant of the lock, or one for a lock without a grant.
func addLock(t io.Writer, k inspect.Lock) {
	grants := k.Grants
	if len(grants) == 0 {
		grants = []inspect.Grant{{Token: k.Token, Holder: k.Holder, Labels: k.Labels, HeldFor: k.HeldFor, Remaining: k.Remaining}}
	}
	for _, g := range grants {
		since, remaining := "-", "-"
		if k.Held() {
			since, remaining = text.Short(g.HeldFor), text.Short(g.Remaining)
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%d\t%s\t%s\t%d\t%s\n", text.Plain(k.Name), state(k), text.Plain(g.Holder), g.Token,
			since, remaining, len(k.Waiters), cmp.Or(strings.Join(text.Labels(g.Labels), ","), "-"))
	}
}

func newShow(g *globals) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "show NAME",
		Short: "Show a lock: its holder, its waiters, and how the last grant ended",
		Args:  lockName,
		RunE: g.withClient(func(ctx context.Context, client *pglock.Client, out io.Writer, args []string) error {
			k, err := client.Get(ctx, args[0])
			switch {
			case errors.Is(err, pglock.ErrNotFound):
				k = inspect.Lock{Name: args[0]} // never granted, or pruned: free
			case err != nil:
				return err
			}
			if asJSON {
				return printJSON(out, k, true)
			}
			return show(out, k)
		}),
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON object")
	return cmd
}

func newRelease(g *globals) *cobra.Command {
	var force bool
	var token int64
	var reason string
	cmd := &cobra.Command{
		Use:   "release NAME --force",
		Short: "End the grant of another process, which is told the reason",
		Long:  help("release"),
		Args: func(cmd *cobra.Command, args []string) error {
			switch err := lockName(cmd, args); {
			case err != nil:
				return err
			case !force:
				return usage(cmd, "this ends the grant of another process: confirm with --force")
			case token <= 0 && cmd.Flags().Changed("token"):
				return usage(cmd, "--token %d is out of range: must be 1 or more", token)
			}
			return nil
		},
		RunE: g.withClient(func(ctx context.Context, client *pglock.Client, out io.Writer, args []string) error {
			return release(ctx, client, out, args[0], pglock.Token(token), reason)
		}),
	}
	cmd.Flags().BoolVar(&force, "force", false, "confirm that the grant of another process ends")
	cmd.Flags().Int64Var(&token, "token", 0, "end only the grant with this `token` (default: the current one)")
	cmd.Flags().StringVar(&reason, "reason", "pglock release --force", "the reason, which the holder is told")
	return cmd
}

func release(ctx context.Context, client *pglock.Client, out io.Writer, name string, token pglock.Token, reason string) error {
	k, err := client.Get(ctx, name)
	if err != nil && !errors.Is(err, pglock.ErrNotFound) {
		return err
	}
	grants := map[pglock.Token]string{} // the holders by their tokens
	if k.Holder != "" {
		grants[k.Token] = k.Holder
	}
	for _, g := range k.Grants {
		grants[g.Token] = g.Holder
	}
	switch {
	case err != nil, token == 0 && len(grants) == 0:
		return &failure{statusNoGrant, fmt.Errorf("lock %q is not held", name)}
	case token == 0 && len(grants) > 1:
		return &failure{statusUsage, fmt.Errorf("lock %q has %d grants: name one of them with --token", name, len(grants))}
	case token == 0:
		token = slices.Collect(maps.Keys(grants))[0]
	}
	holder := ""
	if name := grants[token]; name != "" {
		holder = ", which " + text.Plain(name) + " held"
	}
	switch err = client.Revoke(ctx, name, token, reason); {
	case isAny(err, pglock.ErrStale, pglock.ErrNotFound):
		return &failure{statusNoGrant, err}
	case errors.Is(err, pglock.ErrGuarded):
		return &failure{statusNotAcquired, err}
	case err != nil:
		return err
	}
	_, err = fmt.Fprintf(out, "ended grant %d of lock %q%s\n", token, name, holder)
	return err
}

// lockName checks that the only argument is a lock's name.
func lockName(cmd *cobra.Command, args []string) error {
	switch len(args) {
	case 0:
		return usage(cmd, "no lock name is given")
	case 1:
		return nil
	}
	return usage(cmd, "more than one argument: must be the lock's name only")
}

// withClient returns a command's function that calls fn with a client and stdout. A signal ends its
// context.
func (g *globals) withClient(fn func(context.Context, *pglock.Client, io.Writer, []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		return interruptible(func(ctx context.Context) error {
			client, closeClient, err := g.open(ctx, []pglock.Option{
				pglock.WithSchema(g.schema), pglock.WithMaxConns(2), pglock.WithRetention(0), pglock.WithPollOnly(),
			})
			if err != nil {
				return err
			}
			defer closeClient(exitTimeout)
			return g.explainPrivilege(fn(ctx, client, cmd.OutOrStdout(), args))
		})
	}
}

// stateShared is the state of a lock whose grants leave room for others.
const stateShared = "shared"

// state says in one word whether a lock is held.
func state(k inspect.Lock) string {
	switch {
	case len(k.Grants) > 0 && !k.Grants[0].Exclusive:
		return stateShared
	case k.Held():
		return "held"
	case k.Holder == "" && k.Remaining > 0:
		return "kept" // released, and not free yet
	case k.Holder != "":
		return "expired"
	}
	return "free"
}
