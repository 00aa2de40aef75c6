package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/internal/display"
	"github.com/pglock/pglock-go/pglock/internal/text"
	"github.com/pglock/pglock-go/pglock/schedule"
)

func newSchedule(g *globals) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "schedule",
		Short: "Run a job now that runs once per tick",
		Long:  help("schedule"),
		Args:  knownCommand,
		RunE:  commandMissing,
	}
	var reason string
	run := &cobra.Command{
		Use:               "run NAME",
		Short:             "Run a job once more, by a process that serves it",
		Args:              only("job name"),
		ValidArgsFunction: g.completeName,
		RunE: g.withClient(func(ctx context.Context, client *pglock.Client, out io.Writer, args []string) error {
			job, err := schedule.New(client, args[0])
			if err != nil {
				return err
			}
			tick, err := job.Trigger(ctx, display.By(reason, operator()))
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(out, "triggered job %s: its extra tick is %s\n", text.Plain(args[0]), tick.UTC().Format(time.RFC3339Nano))
			return err
		}),
	}
	run.Flags().StringVar(&reason, "reason", "", "why, for the record")
	cmd.AddCommand(run)
	return cmd
}
