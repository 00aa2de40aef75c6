package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/pglock/pglock-go/internal/errs"
	"github.com/pglock/pglock-go/pglock"
)

// statusNoGrant is the exit status of pglock release if there is no such grant.
const statusNoGrant = 1

func newList(g *globals) *cobra.Command {
	var filter pglock.LockFilter
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "ls",
		Short: "List the locks with their holders and waiters",
		Long: `List the locks with their holders and waiters, in the order of the database's
collation. A free lock is listed until its row is pruned.

A semaphore, or a readers-writer lock with readers, has one line for each grant, in the
state "shared" unless it is exclusive.

The locks are read in steps, so the list may change while it is printed. Text with
blanks, quotes or control characters is quoted. With --json, each line is one lock.`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return g.withClient(func(ctx context.Context, client *pglock.Client) error {
				return list(ctx, client, filter, cmd.OutOrStdout(), asJSON)
			})
		},
	}
	cmd.Flags().StringVar(&filter.Prefix, "prefix", "", "list only the locks whose name begins with `P`")
	cmd.Flags().BoolVar(&filter.Held, "held", false, "list only held locks")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON object a line")
	return cmd
}

// list prints the locks as they are read.
func list(ctx context.Context, client *pglock.Client, filter pglock.LockFilter, w io.Writer, asJSON bool) error {
	definitions, err := client.Definitions(ctx)
	if err != nil {
		return err
	}
	out := bufio.NewWriter(w)
	t := table{out: out}
	if !asJSON {
		_ = t.add("NAME", "STATE", "HOLDER", "TOKEN", "SINCE", "REMAINING", "WAITERS", "TEAM")
	}
	for k, err := range client.Locks(ctx, filter) {
		if err != nil {
			return errors.Join(t.flush(), out.Flush(), err)
		}
		if asJSON {
			err = printJSON(out, k, definitions, false)
		} else {
			err = addLock(&t, k, teamOf(definitions, k.Name))
		}
		if err != nil {
			return err
		}
	}
	return errors.Join(t.flush(), out.Flush())
}

// addLock adds a line for each grant of the lock, and one for a lock without a grant.
func addLock(t *table, k pglock.LockInfo, team string) error {
	waiters := fmt.Sprint(len(k.Waiters))
	if len(k.Grants) == 0 {
		return t.add(plain(k.Name), state(k), plain(k.Holder), fmt.Sprint(k.Token), since(k), remaining(k), waiters, team)
	}
	for _, g := range k.Grants {
		state := stateShared
		if g.Exclusive {
			state = "held"
		}
		if err := t.add(plain(k.Name), state, plain(g.Holder), fmt.Sprint(g.Token), short(g.HeldFor), short(g.Remaining), waiters, team); err != nil {
			return err
		}
	}
	return nil
}

func newShow(g *globals) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "show NAME",
		Short: "Show a lock: its holder, its waiters, and how the last grant ended",
		Args:  lockName,
		RunE: func(cmd *cobra.Command, args []string) error {
			return g.withClient(func(ctx context.Context, client *pglock.Client) error {
				k, err := client.Get(ctx, args[0])
				if errors.Is(err, pglock.ErrNotFound) {
					k, err = pglock.LockInfo{Name: args[0]}, nil // never granted, or pruned: free
				}
				if err != nil {
					return err
				}
				definitions, err := client.Definitions(ctx)
				switch {
				case err != nil:
					return err
				case asJSON:
					return printJSON(cmd.OutOrStdout(), k, definitions, true)
				}
				return show(cmd.OutOrStdout(), k, definitions)
			})
		},
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
		Long: `End the grant of a lock, also of another holder. The lock is free for the next waiter.

The old holder's guarded writes fail at once. Its process learns of the end with its
next renewal, or sooner by a notification, and works on until then: stop it first, if
its writes are not guarded. A guarded transaction that has begun before can still
commit; pglock waits for it for a second.

A semaphore, or a readers-writer lock, can have several grants: name one with --token.
pglock show lists them.

Exit status:
  0   the grant has ended
  1   there is no such grant
  64  wrong usage
  69  the database is unreachable, or tables or rights are missing
  75  the grant has ended, and a guarded transaction is still open: run it again`,
		Args: lockName,
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case !force:
				return usage(cmd, "this ends the grant of another process: confirm with --force")
			case token <= 0 && cmd.Flags().Changed("token"):
				return usage(cmd, "--token %d is out of range: must be 1 or more", token)
			}
			return g.withClient(func(ctx context.Context, client *pglock.Client) error {
				return release(ctx, client, args[0], pglock.Token(token), reason)
			})
		},
	}
	cmd.Flags().BoolVar(&force, "force", false, "confirm that the grant of another process ends")
	cmd.Flags().Int64Var(&token, "token", 0, "end only the grant with this `token` (default: the current one)")
	cmd.Flags().StringVar(&reason, "reason", "pglock release --force", "the reason, which the holder is told")
	return cmd
}

func release(ctx context.Context, client *pglock.Client, name string, token pglock.Token, reason string) error {
	var holder string
	k, err := client.Get(ctx, name)
	switch {
	case errors.Is(err, pglock.ErrNotFound), err == nil && token == 0 && k.Holder == "" && len(k.Grants) == 0:
		console{}.errorf("lock %q is not held", name)
		return exitStatus(statusNoGrant)
	case err != nil:
		return err
	case token == 0 && len(k.Grants) > 1:
		console{}.errorf("lock %q has %d grants: name one of them with --token", name, len(k.Grants))
		return exitStatus(statusUsage)
	case token == 0 && len(k.Grants) == 1:
		token = k.Grants[0].Token
	case token == 0:
		token = k.Token
	}
	if k.Token == token && k.Holder != "" {
		holder = ", which " + plain(k.Holder) + " held"
	}
	for _, g := range k.Grants {
		if g.Token == token {
			holder = ", which " + plain(g.Holder) + " held"
		}
	}
	switch err = client.Revoke(ctx, name, token, reason); {
	case isAny(err, pglock.ErrStale, pglock.ErrNotFound):
		console{}.errorf("%s", errs.Reason(err))
		return exitStatus(statusNoGrant)
	case errors.Is(err, pglock.ErrGuarded):
		console{}.errorf("%s", errs.Reason(err))
		return exitStatus(statusNotAcquired)
	case err != nil:
		return err
	}
	_, err = fmt.Fprintf(os.Stdout, "ended grant %d of lock %q%s\n", token, name, holder)
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

// withClient calls fn with a client. A signal ends its context.
func (g *globals) withClient(fn func(context.Context, *pglock.Client) error) error {
	signals := listenSignals()
	defer signals.stop()
	ctx, stop := signals.untilInterrupted()
	defer stop()
	f := &runFlags{globals: g}
	client, closeClient, err := f.open(ctx, []pglock.Option{
		pglock.WithSchema(g.schemaName()), pglock.WithMaxConns(2), pglock.WithoutPruning(), pglock.WithPollOnly(),
	})
	if err != nil {
		return interruptedOr(ctx, err)
	}
	defer closeClient(exitTimeout)
	return interruptedOr(ctx, g.explainPrivilege(fn(ctx, client)))
}

// stateShared is the state of a lock whose grants leave room for others.
const stateShared = "shared"

// state says in one word whether a lock is held.
func state(k pglock.LockInfo) string {
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

func since(k pglock.LockInfo) string {
	if !k.Held() {
		return "-"
	}
	return short(k.HeldFor)
}

func remaining(k pglock.LockInfo) string {
	if !k.Held() {
		return "-"
	}
	return short(k.Remaining)
}

// short returns a duration with about three digits.
func short(d time.Duration) string {
	switch {
	case d >= 10*time.Second:
		return d.Round(time.Second).String()
	case d >= time.Second:
		return d.Round(100 * time.Millisecond).String()
	}
	return d.Round(time.Millisecond).String()
}
