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
	"github.com/pglock/pglock-go/pglock/internal/text"
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
	var options []migrations.Option
	granted := "" // what to print when the rights are granted
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Create the schema and its tables, or update them",
		Long:  help("migrate_up"),
		Example: `  # The role deploy owns the tables. The role shop uses locks, and can't change the tables.
  PGUSER=deploy pglock migrate up --grant-user shop`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if _, err := g.change(cmd, nothingToDo, migrations.Up, options...); err != nil {
				return err
			}
			_, err := fmt.Fprint(cmd.OutOrStdout(), granted)
			return err
		},
	}
	role := func(flag, what, done string, option func(role string) migrations.Option) {
		cmd.Flags().Func(flag, what+"; may be repeated", func(role string) error {
			if role == "" {
				return errors.New("empty") // flagError makes the message
			}
			options = append(options, option(role))
			granted += fmt.Sprintf("role %s %s\n", text.Quote(role), done)
			return nil
		})
	}
	grant := func(flag, rights string, option func(role string) migrations.Option) {
		role(flag, "let `ROLE` "+rights, "may "+rights, option)
	}
	grant("grant-user", "acquire locks and write as their holder", migrations.WithUser)
	grant("grant-writer", "write as a holder", migrations.WithWriter)
	grant("grant-owner", "protect tables that it owns", migrations.WithOwner)
	grant("grant-reader", "see locks", migrations.WithReader)
	role("revoke", "take away from `ROLE` what these flags gave it", "has no rights any more", migrations.WithoutRole)
	return cmd
}

func newMigrateDown(g *globals) *cobra.Command {
	var yes bool
	cmd := &cobra.Command{
		Use:   "down --yes",
		Short: "Remove the tables and all locks, including held ones",
		Args:  noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !yes {
				return usage(cmd, "this removes all locks of schema %q, including held ones: confirm with --yes", g.schema)
			}
			_, err := g.change(cmd, nothingToDo, migrations.Down)
			return err
		},
	}
	cmd.Flags().BoolVar(&yes, "yes", false, "confirm that all locks are removed, including held ones")
	return cmd
}

func newMigrateVersion(g *globals) *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version of the tables and the required version",
		Long:  help("migrate_version"),
		Args:  noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			version, err := g.change(cmd, "", func(context.Context, *pgxpool.Pool, ...migrations.Option) error { return nil })
			if err == nil && version < schema.Version {
				err = &failure{statusUnavailable, errors.New("the tables are missing or out of date: run pglock migrate up")}
			}
			return err
		},
	}
}

func newMigrateForce(g *globals) *cobra.Command {
	var version int
	return &cobra.Command{
		Use:   "force N",
		Short: "Record that the tables are at version N, without changing them",
		Long:  help("migrate_force"),
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
			_, err := g.change(cmd, "", func(ctx context.Context, pool *pgxpool.Pool, _ ...migrations.Option) error {
				return migrations.Force(ctx, pool, version, migrations.WithSchema(g.schema))
			})
			return err
		},
	}
}

// nothingToDo follows the version if a migration has not changed anything.
const nothingToDo = " (nothing to do)"

// change applies a migration, prints the resulting version and what was done, and returns the
// version. A signal cancels the wait for other processes. A migration that has begun continues.
func (g *globals) change(cmd *cobra.Command, done string, apply func(context.Context, *pgxpool.Pool, ...migrations.Option) error, options ...migrations.Option) (version int, err error) {
	inSchema := migrations.WithSchema(g.schema)
	options = append(options, inSchema, migrations.WithReport(func(from, _ int) { done = fmt.Sprintf(" (migrated from version %d)", from) }))
	err = interruptible(func(ctx context.Context) error {
		pool, err := g.openPool(ctx)
		if err != nil {
			return err
		}
		defer pool.Close()
		if err = apply(ctx, pool, options...); err == nil {
			version, err = migrations.Version(ctx, pool, inSchema)
		}
		if err != nil {
			return g.database().explainConnect(err)
		}
		_, err = fmt.Fprintf(cmd.OutOrStdout(), "schema %s: version %d, required version %d%s\n", text.Quote(g.schema), version, schema.Version, done)
		return err
	})
	return version, err
}
