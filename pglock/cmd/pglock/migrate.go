package main

import (
	"context"
	"errors"
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
		Short: "Create or remove pglock's tables",
		Args: func(cmd *cobra.Command, _ []string) error {
			return usage(cmd, "no command is given: must be up, down, version or force N")
		},
		RunE: commandMissing, // never called: without it cobra prints the help and returns nil
	}
	cmd.AddCommand(newMigrateUp(g), newMigrateDown(g), newMigrateVersion(g), newMigrateForce(g))
	return cmd
}

func newMigrateUp(g *globals) *cobra.Command {
	var users, writers []string
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Create the schema and its tables, or update them",
		Long: `Create the schema and its tables, or update them, and print the result.

Any number of hosts may run this at once: one migrates, the others wait for it. If
the tables are up to date, only the right to read them is needed.

The role that runs this owns the tables. Other roles need --grant-user to acquire
locks, or --grant-writer to write as the holder of a lock whose token they know. To
grant to another role, run it again.`,
		Example: `  # The role deploy owns the tables. The role shop uses locks, and can't change the tables.
  PGUSER=deploy pglock migrate up --grant-user shop`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			options, granted, err := grants(cmd, users, writers)
			if err != nil {
				return err
			}
			if err := g.change(cmd, migrations.Up, options...); err != nil {
				return err
			}
			_, err = fmt.Fprint(cmd.OutOrStdout(), granted)
			return err
		},
	}
	cmd.Flags().StringArrayVar(&users, "grant-user", nil, "let `ROLE` acquire locks and write as their holder; may be repeated")
	cmd.Flags().StringArrayVar(&writers, "grant-writer", nil, "let `ROLE` write as a holder; may be repeated")
	return cmd
}

// grants returns the options that grant rights to the roles, and the text to print when that is
// done.
func grants(cmd *cobra.Command, users, writers []string) (options []migrations.Option, granted string, err error) {
	for _, flag := range []struct {
		name, rights string
		roles        []string
		option       func(string) migrations.Option
	}{
		{"grant-user", "acquire locks and write as their holder", users, migrations.WithUser},
		{"grant-writer", "write as a holder", writers, migrations.WithWriter},
	} {
		for _, role := range flag.roles {
			if role == "" {
				return nil, "", usage(cmd, "--%s is empty: must be the name of a role", flag.name)
			}
			options = append(options, flag.option(role))
			granted += fmt.Sprintf("role %q may %s\n", role, flag.rights)
		}
	}
	return options, granted, nil
}

func newMigrateDown(g *globals) *cobra.Command {
	var yes bool
	cmd := &cobra.Command{
		Use:   "down --yes",
		Short: "Remove the tables and all locks, including held ones",
		Args:  noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !yes {
				return usage(cmd, "this removes all locks of schema %q, including held ones: confirm with --yes", g.schemaName())
			}
			return g.change(cmd, migrations.Down)
		},
	}
	cmd.Flags().BoolVar(&yes, "yes", false, "confirm that all locks are removed, including held ones")
	return cmd
}

func newMigrateVersion(g *globals) *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version of the tables and the required version",
		Long: `Print the version of the tables and the required version.

The exit status is 0 if this pglock can use the tables. It is 69 if they are missing
(version 0) or out of date, if a migration failed half-way, or if a newer pglock
created them.`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return g.onDatabase(func(ctx context.Context, pool *pgxpool.Pool) error {
				version, err := g.printVersion(ctx, cmd, pool, "")
				if err == nil && version < schema.Version {
					err = fmt.Errorf("%w: run pglock migrate up", errOutOfDate)
				}
				return err
			})
		},
	}
}

// errOutOfDate: the tables are missing, or an earlier version created them.
var errOutOfDate = errors.New("the tables are missing or out of date")

func newMigrateForce(g *globals) *cobra.Command {
	var version int
	return &cobra.Command{
		Use:   "force N",
		Short: "Record that the tables are at version N, without changing them",
		Long: `Record that the tables are at version N, without changing them. Version 0 means that
there are none.

Use it after a migration that failed half-way. The error of "pglock migrate version"
names N.`,
		Args: func(cmd *cobra.Command, args []string) (err error) {
			if len(args) != 1 {
				return usage(cmd, "%d arguments are given: must be the version", len(args))
			}
			version, err = strconv.Atoi(args[0])
			if err != nil || version < 0 || version > schema.Version {
				return usage(cmd, "version is invalid: must be a number from 0 to %d", schema.Version)
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			return g.onDatabase(func(ctx context.Context, pool *pgxpool.Pool) error {
				if err := migrations.Force(ctx, pool, version, migrations.WithSchema(g.schemaName())); err != nil {
					return err
				}
				_, err := g.printVersion(ctx, cmd, pool, "")
				return err
			})
		},
	}
}

// change applies a migration, and prints the resulting version and whether anything was changed.
func (g *globals) change(cmd *cobra.Command, apply func(context.Context, *pgxpool.Pool, ...migrations.Option) error, options ...migrations.Option) error {
	return g.onDatabase(func(ctx context.Context, pool *pgxpool.Pool) error {
		done := " (nothing to do)"
		options = append(options, migrations.WithSchema(g.schemaName()), migrations.WithReport(func(from, _ int) {
			done = fmt.Sprintf(" (migrated from version %d)", from)
		}))
		if err := apply(ctx, pool, options...); err != nil {
			return err
		}
		_, err := g.printVersion(ctx, cmd, pool, done)
		return err
	})
}

// printVersion prints the version of the tables, and returns it.
func (g *globals) printVersion(ctx context.Context, cmd *cobra.Command, pool *pgxpool.Pool, done string) (int, error) {
	version, err := migrations.Version(ctx, pool, migrations.WithSchema(g.schemaName()))
	if err != nil {
		return 0, err
	}
	_, err = fmt.Fprintf(cmd.OutOrStdout(), "schema %q: version %d, required version %d%s\n", g.schemaName(), version, schema.Version, done)
	return version, err
}

// onDatabase calls fn with a pool. A signal cancels the wait for other processes. A migration that
// has begun continues.
func (g *globals) onDatabase(fn func(context.Context, *pgxpool.Pool) error) error {
	signals := listenSignals()
	defer signals.stop()
	ctx, stop := signals.untilInterrupted()
	defer stop()
	pool, err := g.openPool(ctx)
	if err != nil {
		return err
	}
	defer pool.Close()
	if err := fn(ctx, pool); err != nil {
		return interruptedOr(ctx, g.database().explainConnect(err))
	}
	return nil
}
