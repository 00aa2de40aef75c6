package main

import (
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/pglock/pglock-go/internal/schema"
)

// schemaVariable names the schema, for pglock and for a pglock in its command.
const schemaVariable = "PGLOCK_SCHEMA"

// globals are the flags of every command.
type globals struct {
	databaseURL string
	schema      string
	cmd         *cobra.Command // the root, which knows what was given
}

// execute runs pglock and returns its exit status.
func execute(args []string) int {
	root := newRoot()
	root.SetArgs(args)
	return report(root.Execute())
}

func newRoot() *cobra.Command {
	g := &globals{}
	root := &cobra.Command{
		Use:   "pglock",
		Short: "Distributed locks in PostgreSQL",
		Long: `Distributed locks in PostgreSQL, for scripts and operators.

The database comes from --database-url, else $PGLOCK_DATABASE_URL, else
$DATABASE_URL, else the PG* variables, as in psql. Other users of the machine can
see command lines: keep passwords in the environment, or in ~/.pgpass.`,
		Args: knownCommand,
		RunE: commandMissing,

		SilenceErrors:              true,
		SilenceUsage:               true,
		DisableFlagsInUseLine:      true,
		SuggestionsMinimumDistance: 2,
	}
	g.cmd = root
	root.SetFlagErrorFunc(flagError)
	root.PersistentFlags().StringVar(&g.databaseURL, "database-url", "", "the database, as a `URL` or as keywords and values")
	root.PersistentFlags().StringVar(&g.schema, "schema", schema.Default, "the schema with pglock's tables, also $PGLOCK_SCHEMA")
	root.AddCommand(newRun(g), newMigrate(g), newVersion())
	return root
}

// schemaName returns the schema that was asked for.
func (g *globals) schemaName() string {
	if name := os.Getenv(schemaVariable); name != "" && !g.cmd.PersistentFlags().Changed("schema") {
		return name
	}
	return g.schema
}

// knownCommand is reached with arguments only if the first is no command.
func knownCommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	if !plainWord(args[0]) {
		return usage(cmd, "unknown command")
	}
	if similar := cmd.SuggestionsFor(args[0]); len(similar) > 0 {
		return usage(cmd, "unknown command %q, did you mean %s?", args[0], strings.Join(similar, " or "))
	}
	return usage(cmd, "unknown command %q", args[0])
}

func commandMissing(cmd *cobra.Command, _ []string) error {
	return usage(cmd, "no command is given")
}
