package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/pglock/pglock-go/pglock/cmd/pglock/internal/doctor"
)

// statusUnhealthy is the exit status of pglock doctor if a check fails.
const statusUnhealthy = 1

func newDoctor(g *globals) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Check the connection, the server, the tables and the rights, with a remedy for each problem",
		Long: `Check whether locks work with this database and this role, and stay fast and safe:
the connection, the version and the state of the server, the tables, the rights of the
role, a pooler in between, notifications, clocks, tokens, what keeps dead rows, vacuum,
durability, and free connections.

Each check prints a line that begins with ok, warn or fail. After a problem and a colon
comes the remedy. Warnings are about locks that get slower, or that a crash could harm.
A failure means that locks do not work or are not safe.

doctor changes nothing, needs no superuser, and takes less than two seconds, or a few
more if the server does not answer. It connects twice, to see whether a notification
arrives.

Exit status:
  0   nothing fails
  1   a check fails, or the database is unreachable
  64  wrong usage`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error { return g.doctor(cmd.OutOrStdout(), asJSON) },
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON object: ok, and checks with check, level, found and remedy")
	return cmd
}

func (g *globals) doctor(out io.Writer, asJSON bool) error {
	database := g.database()
	config, err := database.config()
	if err != nil {
		return err
	}
	signals := listenSignals()
	defer signals.stop()
	ctx, stop := signals.untilInterrupted()
	defer stop()
	results := doctor.Run(ctx, doctor.Config{
		Conn: config.ConnConfig, Schema: g.schemaName(), Limits: doctor.DefaultLimits(), ExplainConnect: database.explainConnect,
	})
	if err := interruptedOr(ctx, nil); err != nil {
		return err
	}
	if err := printResults(out, results, asJSON); err != nil {
		return err
	}
	if doctor.Failed(results) {
		return exitStatus(statusUnhealthy)
	}
	return nil
}

func printResults(out io.Writer, results []doctor.Result, asJSON bool) error {
	if asJSON {
		return encodeJSON(out, struct {
			OK     bool            `json:"ok"`
			Checks []doctor.Result `json:"checks"`
		}{!doctor.Failed(results), results}, true)
	}
	width := 0
	for _, r := range results {
		width = max(width, len(r.Check))
	}
	var text strings.Builder
	for _, r := range results {
		line := fmt.Sprintf("%-4s  %-*s  %s", r.Level, width, r.Check, r.Found)
		if r.Remedy != "" {
			line += ": " + r.Remedy
		}
		text.WriteString(oneLine(line) + "\n")
	}
	_, err := io.WriteString(out, text.String())
	return err
}
