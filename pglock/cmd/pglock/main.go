package main

import (
	"cmp"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	_ "time/tzdata" // --tick needs it where there are no zone files, as in an image from scratch

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/pglock/pglock-go/internal/schema"
	"github.com/pglock/pglock-go/pglock/cmd/pglock/internal/child"
	"github.com/pglock/pglock-go/pglock/cmd/pglock/internal/doctor"
	"github.com/pglock/pglock-go/pglock/cmd/pglock/internal/top"
)

func main() {
	child.Hook()
	os.Exit(execute(os.Args[1:]))
}

// schemaVariable names the schema, for pglock and for a pglock that its command runs.
const schemaVariable = "PGLOCK_SCHEMA"

type globals struct {
	databaseURL string
	schema      string
	holder      string         // of --holder
	cmd         *cobra.Command // the root command, which knows which flags were set
}

func execute(args []string) int {
	root := newRoot()
	if len(args) == 1 && args[0] == cobra.ShellCompRequestCmd {
		args = append(args, "") // cobra has no status 64 for it: complete the empty word
	}
	root.SetArgs(args)
	return report(root.Execute())
}

func newRoot() *cobra.Command {
	g := &globals{}
	root := &cobra.Command{
		Use:   "pglock",
		Short: "Distributed locks in PostgreSQL",
		Long:  help("pglock"),
		Args:  knownCommand,
		RunE:  commandMissing,

		Version:                    versions(), // adds the flag --version
		SilenceErrors:              true,
		SilenceUsage:               true,
		DisableFlagsInUseLine:      true,
		SuggestionsMinimumDistance: 2,
	}
	g.cmd = root
	root.SetFlagErrorFunc(flagError)
	root.SetVersionTemplate("{{.Version}}")
	root.Flags().Bool("version", false, "print the versions of pglock, of Go and of the schema")
	root.PersistentFlags().StringVar(&g.databaseURL, "database-url", "", "the database: a `URL`, or keywords and values")
	from, set := os.LookupEnv(schemaVariable)
	if !set {
		from = schema.Default
	}
	root.PersistentFlags().StringVar(&g.schema, "schema", from, "the schema with pglock's tables, or $PGLOCK_SCHEMA")
	root.AddCommand(newRun(g), newLead(g), newHold(g), newList(g), newShow(g), newWatch(g), newTop(g), newUI(g), newOnce(g), newSchedule(g), newAsk(g), newRelease(g), newDoctor(g), newMigrate(g))
	for _, command := range extraCommands {
		root.AddCommand(command(g))
	}
	completeFlags(root)
	return root
}

// flagValues are the values of the flags that have a few.
var flagValues = map[string][]cobra.Completion{"screen": top.Screens(), "as": doctor.Roles, "access": {"read", "operate", "revoke"}}

// completeFlags completes the values of all flags, of which none is a file.
func completeFlags(cmd *cobra.Command) {
	for _, c := range cmd.Commands() {
		completeFlags(c)
	}
	cmd.LocalFlags().VisitAll(func(flag *pflag.Flag) { // no flag has another completion, which would be an error
		_ = cmd.RegisterFlagCompletionFunc(flag.Name, cobra.FixedCompletions(flagValues[flag.Name], cobra.ShellCompDirectiveNoFileComp))
	})
}

// extraCommands are those of a build tag.
var extraCommands []func(*globals) *cobra.Command

// versions returns the output of `pglock --version`. The version of a build from a working copy,
// which the go command derives, contains the commit.
func versions() string {
	version := "(devel)"
	if info, ok := debug.ReadBuildInfo(); ok {
		version = cmp.Or(info.Main.Version, version)
	}
	return fmt.Sprintf("pglock %s\n%s %s/%s\nschema version %d\n", version, runtime.Version(), runtime.GOOS, runtime.GOARCH, schema.Version)
}

// knownCommand refuses an unknown command. cobra calls it with arguments only in that case.
func knownCommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	if !plainWord(args[0]) {
		return usage(cmd, "unknown command")
	}
	other := func(name string) bool { return !strings.HasPrefix(name, args[0][:min(1, len(args[0]))]) } // a short name is near to every word
	if similar := slices.DeleteFunc(cmd.SuggestionsFor(args[0]), other); len(similar) > 0 {
		return usage(cmd, "unknown command %q: did you mean %s?", args[0], strings.Join(similar, " or "))
	}
	return usage(cmd, "unknown command %q", args[0])
}

func commandMissing(cmd *cobra.Command, _ []string) error {
	return usage(cmd, "no command is given")
}
