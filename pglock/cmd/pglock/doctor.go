package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/pglock/pglock-go/pglock/cmd/pglock/internal/doctor"
	"github.com/pglock/pglock-go/pglock/internal/text"
)

const statusUnhealthy = 1

func newDoctor(g *globals) *cobra.Command {
	var asJSON, quiet bool
	role := doctor.Roles[0]
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Check the connection, the server, the tables and the rights, with a remedy for each problem",
		Long:  help("doctor"),
		Args: func(cmd *cobra.Command, args []string) error {
			if !slices.Contains(doctor.Roles, role) {
				return usage(cmd, "--as is unknown: must be one of %s", strings.Join(doctor.Roles, ", "))
			}
			return noArguments(cmd, args)
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			if _, err := g.database().config(); err != nil {
				return err
			}
			return interruptible(func(ctx context.Context) error {
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
