package main

import (
	"context"
	"fmt"
	"strconv"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/pglock/pglock-go/internal/schema"
	"github.com/pglock/pglock-go/migrations"
)

func newMigrate(g *globals) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "migrate",
		Short: "Create pglock's tables, or remove them",
		Args: func(cmd *cobra.Command, _ []string) error {
			return usage(cmd, "say up, down, version or force N")
		},
		RunE: commandMissing, // never reached; without it cobra would print its help and succeed
	}
	cmd.AddCommand(newMigrateUp(g), newMigrateDown(g), newMigrateVersion(g), newMigrateForce(g))
	return cmd
}

func newMigrateUp(g *globals) *cobra.Command {
	return &cobra.Command{
		Use:   "up",
		Short: "Create the schema and its tables, or bring them up to date",
		Long: `Create the schema and its tables, or bring them up to date.

Any number of hosts may do this at once: one migrates, the others wait for it. If
nothing is to be done, no rights are needed but to read.`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return g.migrate(cmd, migrations.Up)
		},
	}
}

func newMigrateDown(g *globals) *cobra.Command {
	var yes bool
	cmd := &cobra.Command{
		Use:   "down --yes",
		Short: "Remove the tables with all locks in them, also those that are held",
		Args:  noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !yes {
				return usage(cmd, "this removes all locks of schema %q, also those that are held: confirm it with --yes", g.schemaName())
			}
			return g.migrate(cmd, migrations.Down)
		},
	}
	cmd.Flags().BoolVar(&yes, "yes", false, "I know that this removes all locks, also those that are held")
	return cmd
}

func newMigrateVersion(g *globals) *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version of the tables, and which one is needed",
		Long: `Print the version of the tables, and which one is needed.

The exit status is 0 also if the tables are missing (version 0) or out of date, and
69 if a migration stopped half-way or a newer pglock made them.`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return g.migrate(cmd, func(context.Context, *pgxpool.Pool, ...migrations.Option) error { return nil })
		},
	}
}

func newMigrateForce(g *globals) *cobra.Command {
	var version int
	return &cobra.Command{
		Use:   "force N",
		Short: "Record that the tables are at version N, without touching them",
		Long: `Record that the tables are at version N, 0 for none, without touching them.

It is the way out after a migration that stopped half-way; "pglock migrate version"
then tells how to find out what N is.`,
		Args: func(cmd *cobra.Command, args []string) (err error) {
			if len(args) != 1 {
				return usage(cmd, "name the version, and nothing else")
			}
			version, err = strconv.Atoi(args[0])
			if err != nil || version < 0 || version > schema.Version {
				return usage(cmd, "the version is a number from 0 to %d", schema.Version)
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			return g.migrate(cmd, func(ctx context.Context, pool *pgxpool.Pool, opts ...migrations.Option) error {
				return migrations.Force(ctx, pool, version, opts...)
			})
		},
	}
}

// migrate applies a change and prints the version that it led to. A signal ends
// the waiting for others; a migration that has begun is carried out.
func (g *globals) migrate(cmd *cobra.Command, apply func(context.Context, *pgxpool.Pool, ...migrations.Option) error) error {
	signals := listen()
	defer signals.stop()
	ctx, stop := signals.untilInterrupted()
	defer stop()
	pool, err := g.openPool(ctx)
	if err != nil {
		return err
	}
	defer pool.Close()
	inSchema := migrations.WithSchema(g.schemaName())
	err = apply(ctx, pool, inSchema)
	var version int
	if err == nil {
		version, err = migrations.Version(ctx, pool, inSchema)
	}
	if err != nil {
		return interruptedOr(ctx, g.database().explainConnect(err))
	}
	_, err = fmt.Fprintf(cmd.OutOrStdout(), "schema %q: version %d, this pglock needs %d\n", g.schemaName(), version, schema.Version)
	return err
}
