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
	"time"

	"github.com/spf13/cobra"

	"github.com/pglock/pglock-go/advisory"
	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/inspect"
	"github.com/pglock/pglock-go/pglock/internal/display"
	"github.com/pglock/pglock-go/pglock/internal/text"
)

func newList(g *globals) *cobra.Command {
	var filter inspect.Filter
	var all, asJSON bool
	var wanted []string
	cmd := &cobra.Command{
		Use:   "ls",
		Short: "List the held locks with their holders and waiters",
		Long:  help("ls"),
		Args:  noArguments,
		RunE: g.withClient(func(ctx context.Context, client *pglock.Client, w io.Writer, _ []string) (err error) {
			filter.Held = !all
			if filter.Labels, err = labelMap(wanted); err != nil {
				return &failure{statusUsage, err}
			}
			out := bufio.NewWriter(w)
			t := newTable(out) // keeps its rows, but JSON is printed while the locks are read
			if !asJSON {
				fmt.Fprintln(t, "NAME\tSTATE\tHOLDER\tTOKEN\tSINCE\tREMAINING\tWAITERS\tLABELS")
			}
			guards := sessionsOf(ctx, client).Guards
			filter.Held = filter.Held && !slices.ContainsFunc(guards, func(g inspect.Guard) bool { return g.Ended })
			for k, err := range client.Locks(ctx, filter) {
				users := guardsOf(k, guards)
				switch {
				case err != nil, !all && !k.Held() && len(users) == 0:
				case asJSON:
					err = printJSON(out, k, false)
				default:
					addLock(t, k, users)
				}
				if err != nil {
					return errors.Join(t.Flush(), out.Flush(), err)
				}
			}
			return errors.Join(t.Flush(), out.Flush())
		}),
	}
	flags := cmd.Flags()
	flags.BoolVar(&all, "all", false, "list free locks too, until their rows are pruned")
	flags.BoolVar(&filter.Waiting, "waiting", false, "list only locks that somebody waits for")
	flags.StringVar(&filter.Prefix, "prefix", "", "list only the locks whose name begins with `P`")
	flags.StringVar(&filter.Pattern, "pattern", "", "list only the locks whose whole name matches `P`, with * and ?")
	flags.StringVar(&filter.Holder, "holder", "", "list only the locks of this holder, by `name`")
	flags.StringArrayVar(&wanted, "label", nil, "list only the locks with this label, as `key=value`; may be repeated")
	flags.BoolVar(&asJSON, "json", false, "print one JSON object a line")
	return cmd
}

// addLock adds a line for each grant of the lock, or one for a lock without a grant, and one for
// each session that keeps it from others by a grant that has ended.
func addLock(t io.Writer, k inspect.Lock, guards []inspect.Guard) {
	grants := k.Live()
	if len(grants) == 0 {
		grants = []inspect.Grant{{Token: k.Token, Holder: k.Holder}}
	}
	for _, g := range grants {
		since, remaining := "-", "-"
		if k.Held() {
			since, remaining = text.Short(g.HeldFor), text.Short(g.Remaining)
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%d\t%s\t%s\t%s\t%s\n", text.Plain(k.Name), k.State(), text.Plain(g.Holder), g.Token,
			since, remaining, text.Waiters(k), cmp.Or(strings.Join(text.Labels(g.Labels), ","), "-"))
	}
	for _, g := range guards {
		if g.Ended {
			fmt.Fprintf(t, "%s\tguarded\t-\t-\t%s\t-\t%s\tby %s\n", text.Plain(k.Name), text.Short(g.Age), text.Waiters(k), describeGuard(g))
		}
	}
}

func newShow(g *globals) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:               "show NAME",
		Short:             "Show a lock: its holder, its waiters, and how the last grant ended",
		Long:              help("show"),
		Args:              only("lock name"),
		ValidArgsFunction: g.completeName,
		RunE: g.withClient(func(ctx context.Context, client *pglock.Client, out io.Writer, args []string) error {
			k, err := client.Get(ctx, args[0])
			s := sessionsOf(ctx, client)
			s.Advisory = slices.DeleteFunc(s.Advisory, func(u advisory.Usage) bool { return u.Key != client.Key(args[0]) })
			switch {
			case errors.Is(err, pglock.ErrNotFound) && len(s.Advisory) == 0:
				return unknownLock(ctx, client, args[0])
			case err != nil && !errors.Is(err, pglock.ErrNotFound):
				return err
			case asJSON:
				return printJSON(out, k, true)
			}
			return show(out, k, s)
		}),
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON object")
	return cmd
}

// sessionsOf returns the sessions that guard a grant, or hold or wait for an advisory lock. If the
// server is a standby, it says so.
func sessionsOf(ctx context.Context, client *pglock.Client) inspect.Snapshot {
	s, _ := client.Snapshot(ctx, inspect.Query{Filter: inspect.Filter{Elections: true}}) // few locks; what it can't read is not shown
	saysStandby(s.Server)
	return s
}

// saysStandby prints what is different if the server is a standby.
func saysStandby(s inspect.Server) {
	if s.Standby {
		console{}.errorf("this is %s", text.Standby(s))
	}
}

func guardsOf(k inspect.Lock, all []inspect.Guard) []inspect.Guard {
	return slices.DeleteFunc(slices.Clone(all), func(g inspect.Guard) bool { return g.Name != k.Name })
}

// unknownLock returns the error for a name without a row, with names that look like it.
func unknownLock(ctx context.Context, client *pglock.Client, name string) error {
	var near []string
	for k, err := range client.Locks(ctx, inspect.Filter{Held: true}) {
		if err != nil || len(near) == 3 {
			break
		}
		if similar(name, k.Name) {
			near = append(near, text.Plain(k.Name))
		}
	}
	hint := ""
	if len(near) > 0 {
		hint = ": did you mean " + strings.Join(near, " or ") + "?"
	}
	return &failure{statusNoGrant, fmt.Errorf("no such lock: %s was never used, or its row was pruned%s", text.Plain(name), hint)}
}

// similar reports whether b is a with one part more, fewer or different, without regard to case.
func similar(a, b string) bool {
	a, b = strings.ToLower(a), strings.ToLower(b)
	if strings.Contains(b, a) || strings.Contains(a, b) {
		return true
	}
	for len(a) > 0 && len(b) > 0 && a[0] == b[0] {
		a, b = a[1:], b[1:]
	}
	for len(a) > 0 && len(b) > 0 && a[len(a)-1] == b[len(b)-1] {
		a, b = a[:len(a)-1], b[:len(b)-1]
	}
	return len(a) <= 2 && len(b) <= 2
}

func newWatch(g *globals) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:               "watch NAME",
		Short:             "Print a line whenever the holder of a lock changes, until interrupted",
		Args:              only("lock name"),
		ValidArgsFunction: g.completeName,
		RunE: g.withClient(func(ctx context.Context, client *pglock.Client, out io.Writer, args []string) error {
			for k, err := range client.Watch(ctx, args[0]) {
				if err == nil && asJSON {
					err = printJSON(out, k, false)
				} else if err == nil {
					_, err = fmt.Fprintf(out, "%s  %s\n", time.Now().UTC().Format(time.RFC3339), changed(k))
				}
				if err != nil {
					return err
				}
			}
			return nil
		}),
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON object a line")
	return cmd
}

func changed(k inspect.Lock) string {
	if !k.Held() {
		if k.Previous.End != "" {
			return fmt.Sprintf("%s, after %s (%s)", k.State(), text.Plain(k.Previous.Holder), text.Plain(k.Previous.End))
		}
		return k.State()
	}
	return fmt.Sprintf("%s by %s, token %d, %s waiters", k.State(), text.List(k.Holders()), k.Token, text.Waiters(k))
}

// completeName completes names of locks, and prints nothing if it can't read them in time.
func (g *globals) completeName(cmd *cobra.Command, args []string, toComplete string) (names []cobra.Completion, _ cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveDefault
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), completionTimeout)
	defer cancel()
	client, closeClient, err := g.open(ctx, readerOptions(g.schema))
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	defer closeClient(time.Second)
	for k, err := range client.Locks(ctx, inspect.Filter{Prefix: toComplete}) {
		if err != nil || len(names) == mostCompletions {
			break
		}
		if text.Plain(k.Name) == k.Name { // a shell would take the others apart
			names = append(names, k.Name)
		}
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

const (
	completionTimeout = 2 * time.Second
	mostCompletions   = 100
)

// chosen is the grant of another process that a command is about, and why.
type chosen struct {
	name, holder string // holder is "" if it is not known
	token        pglock.Token
	reason       string
}

// change returns a command that does something to a grant. confirm returns the error of a missing confirmation.
func change(g *globals, cmd *cobra.Command, confirm func() error, do func(context.Context, *pglock.Client, io.Writer, chosen) error) *cobra.Command {
	var c chosen
	var token int64
	cmd.ValidArgsFunction = g.completeName
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		switch err := only("lock name")(cmd, args); {
		case err != nil:
			return err
		case token <= 0 && cmd.Flags().Changed("token"):
			return usage(cmd, "--token %d is out of range: must be 1 or more", token)
		}
		if err := confirm(); err != nil {
			return err
		}
		if strings.TrimSpace(c.reason) == "" {
			return usage(cmd, "the holder is told why: give a --reason")
		}
		c.reason = display.By(c.reason, operator())
		return nil
	}
	cmd.RunE = g.withClient(func(ctx context.Context, client *pglock.Client, out io.Writer, args []string) (err error) {
		c.name, c.token = args[0], pglock.Token(token)
		if err = c.choose(ctx, client); err == nil {
			err = do(ctx, client, out, c)
		}
		return err
	})
	cmd.Flags().Int64Var(&token, "token", 0, "only the grant with this `token` (default: the current one)")
	cmd.Flags().StringVar(&c.reason, "reason", "", "the reason, which the holder is told")
	return cmd
}

func newRelease(g *globals) *cobra.Command {
	var force bool
	cmd := &cobra.Command{
		Use:   "release NAME --force --reason TEXT",
		Short: "End the grant of another process, which is told the reason",
		Long:  help("release"),
	}
	cmd.Flags().BoolVar(&force, "force", false, "confirm that the grant of another process ends")
	return change(g, cmd, func() error {
		if !force {
			return usage(cmd, "this ends the grant of another process: confirm with --force")
		}
		return nil
	}, release)
}

func newAsk(g *globals) *cobra.Command {
	return change(g, &cobra.Command{
		Use:   "ask NAME --reason TEXT",
		Short: "Ask the holder of a lock to release it",
		Long:  help("ask"),
	}, func() error { return nil }, ask)
}

// choose sets the token and the holder.
func (c *chosen) choose(ctx context.Context, client *pglock.Client) error {
	k, err := client.Get(ctx, c.name)
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
	case err != nil, c.token == 0 && len(grants) == 0:
		return c.stillGuarded(ctx, client, &failure{statusNoGrant, fmt.Errorf("lock %q is not held", c.name)})
	case c.token == 0 && len(grants) > 1:
		return &failure{statusUsage, fmt.Errorf("lock %q has %d grants: name one of them with --token", c.name, len(grants))}
	case c.token == 0:
		c.token = slices.Collect(maps.Keys(grants))[0]
	}
	c.holder = text.Plain(grants[c.token])
	return nil
}

func release(ctx context.Context, client *pglock.Client, out io.Writer, c chosen) error {
	switch err := client.Revoke(ctx, c.name, c.token, c.reason); {
	case isAny(err, pglock.ErrStale, pglock.ErrNotFound):
		return &failure{statusNoGrant, err}
	case errors.Is(err, pglock.ErrGuarded):
		return c.stillGuarded(ctx, client, &failure{statusNotAcquired, err})
	case err != nil:
		return err
	}
	return c.report(out, "ended", "held")
}

func ask(ctx context.Context, client *pglock.Client, out io.Writer, c chosen) error {
	switch err := client.RequestRelease(ctx, c.name, c.token, c.reason); {
	case isAny(err, pglock.ErrStale, pglock.ErrNotFound):
		return &failure{statusNoGrant, err}
	case err != nil:
		return err
	}
	return c.report(out, "asked for", "holds")
}

// report prints what was done to the grant, whose holder holds or held it.
func (c chosen) report(out io.Writer, done, holds string) error {
	holder := ""
	if c.holder != "" {
		holder = ", which " + c.holder + " " + holds
	}
	_, err := fmt.Fprintf(out, "%s grant %d of lock %s%s\n", done, c.token, text.Quote(c.name), holder)
	return err
}

// stillGuarded adds to a failure the sessions that guard a grant of the lock that has ended.
func (c chosen) stillGuarded(ctx context.Context, client *pglock.Client, f *failure) error {
	for _, g := range guardsOf(inspect.Lock{Name: c.name}, sessionsOf(ctx, client).Guards) {
		if g.Ended {
			f = &failure{statusNotAcquired, fmt.Errorf("%w: it is guarded by %s: end that transaction, or run %s", f.error, describeGuard(g), text.OneLine(display.EndGuard(g)))}
		}
	}
	return f
}

// only returns a function that checks that the only argument is the name of that, or its key.
func only(what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		switch len(args) {
		case 0:
			return usage(cmd, "no %s is given", what)
		case 1:
			return nil
		}
		return usage(cmd, "more than one argument: must be the %s only", what)
	}
}

// withClient returns a command's function that calls fn with a client, until a signal ends it.
func (g *globals) withClient(fn func(context.Context, *pglock.Client, io.Writer, []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		return interruptible(func(ctx context.Context) error {
			client, closeClient, err := g.open(ctx, readerOptions(g.schema))
			if err != nil {
				return err
			}
			defer closeClient(exitTimeout)
			return g.explainPrivilege(fn(ctx, client, cmd.OutOrStdout(), args))
		})
	}
}

func readerOptions(schema string) []pglock.Option {
	return []pglock.Option{pglock.WithSchema(schema), pglock.WithMaxConns(2), pglock.WithRetention(0), pglock.WithStandby()}
}
