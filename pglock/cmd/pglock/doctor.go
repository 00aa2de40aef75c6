package main

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/pglock/pglock-go/pglock/cmd/pglock/internal/doctor"
	"github.com/pglock/pglock-go/pglock/cmd/pglock/internal/text"
)

// statusUnhealthy is the exit status of pglock doctor if a check fails.
const statusUnhealthy = 1

func newDoctor(g *globals) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Check the connection, the server, the tables and the rights, with a remedy for each problem",
		Long:  help("doctor"),
		Args:  noArguments,
		RunE:  func(cmd *cobra.Command, _ []string) error { return g.doctor(cmd.OutOrStdout(), asJSON) },
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON object: ok, and checks with check, level, found and remedy")
	return cmd
}

func (g *globals) doctor(out io.Writer, asJSON bool) error {
	if _, err := g.database().config(); err != nil {
		return err
	}
	return interruptible(func(ctx context.Context) error {
		results := g.checks(ctx)
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := printResults(out, results, asJSON); err != nil {
			return err
		}
		if doctor.Failed(results) {
			return exitStatus(statusUnhealthy)
		}
		return nil
	})
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
		found := r.Found
		if r.Remedy != "" {
			found += ": " + r.Remedy
		}
		fmt.Fprintf(t, "%-4s\t%s\t%s\n", r.Level, r.Check, text.OneLine(found))
	}
	return t.Flush()
}
