package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/pglock/pglock-go/pglock/cmd/pglock/internal/doctor"
	"github.com/pglock/pglock-go/pglock/inspect"
	"github.com/pglock/pglock-go/pglock/internal/display"
	"github.com/pglock/pglock-go/pglock/internal/text"
)

const statusUnhealthy = 1

func newDoctor(g *globals) *cobra.Command {
	var asJSON, quiet, now bool
	role := doctor.Roles[0]
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Check the connection, the server, the tables and the rights, with a remedy for each problem",
		Long:  help("doctor"),
		Args: func(cmd *cobra.Command, args []string) error {
			switch {
			case now && (quiet || asJSON || cmd.Flags().Changed("as")):
				return usage(cmd, "--now excludes --quiet, --json and --as: must be alone")
			case !slices.Contains(doctor.Roles, role):
				return usage(cmd, "--as is unknown: must be one of %s", strings.Join(doctor.Roles, ", "))
			}
			return noArguments(cmd, args)
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			if _, err := g.database().config(); err != nil {
				return err
			}
			return interruptible(func(ctx context.Context) error {
				if now {
					return g.printAttention(ctx, cmd.OutOrStdout())
				}
				results := g.checks(ctx, role)
				if err := ctx.Err(); err != nil {
					return err
				}
				shown := results
				if quiet {
					shown = slices.DeleteFunc(slices.Clone(results), func(r doctor.Result) bool { return r.Level == doctor.OK })
				}
				if err := printResults(cmd.OutOrStdout(), shown, asJSON); err != nil {
					return err
				}
				if doctor.Failed(results) {
					return exitStatus(statusUnhealthy)
				}
				return nil
			})
		},
	}
	cmd.Flags().StringVar(&role, "as", role, "what the `role` is for: "+strings.Join(doctor.Roles, ", "))
	cmd.Flags().BoolVar(&now, "now", false, "print what needs attention now, with its cure, like the first screen of top")
	cmd.Flags().BoolVarP(&quiet, "quiet", "q", false, "print only what is not ok")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON object: ok, and checks with check, level, found and remedy")
	return cmd
}

func printResults(out io.Writer, results []doctor.Result, asJSON bool) error {
	if asJSON {
		return encodeJSON(out, struct {
			OK     bool            `json:"ok"`
			Checks []doctor.Result `json:"checks"`
		}{!doctor.Failed(results), results}, true)
	}
	t := newTable(out)
	for _, r := range results {
		fmt.Fprintf(t, "%-4s\t%s\t%s\n", r.Level, r.Check, text.OneLine(r.Text()))
	}
	return t.Flush()
}

// printAttention prints what needs attention. It reads once, so it knows of no renewal that is missing.
func (g *globals) printAttention(ctx context.Context, out io.Writer) error {
	var checks []display.Check
	for _, r := range g.checks(ctx, doctor.Screen) {
		checks = append(checks, display.Check{Name: r.Check, Level: string(r.Level), Found: r.Found, Remedy: r.Remedy})
	}
	var s inspect.Snapshot
	client, closeClient, err := g.open(ctx, readerOptions(g.schema))
	if err == nil {
		defer closeClient(exitTimeout)
		s, err = client.Snapshot(ctx, display.ManyLocks)
		saysStandby(s.Server)
	}
	all := display.Attention(s, nil, nil, checks)
	if len(all) == 0 {
		if err == nil {
			_, err = fmt.Fprintln(out, "ok    nothing needs attention")
		}
		return g.explainPrivilege(err)
	}
	for _, c := range all { // if the database does not answer, doctor says why
		if _, err := fmt.Fprintf(out, "%-4s  %s\n      %s\n", c.Level, c.Line(), text.OneLine(c.Cure)); err != nil {
			return err
		}
	}
	return exitStatus(statusUnhealthy)
}
