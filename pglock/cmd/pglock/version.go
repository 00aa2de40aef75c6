package main

import (
	"cmp"
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"

	"github.com/pglock/pglock-go/internal/schema"
)

func newVersion() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the versions of pglock, of Go and of the schema",
		Args:  noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprint(cmd.OutOrStdout(), versions())
			return err
		},
	}
}

// versions returns the output of `pglock version` and `pglock --version`. The version of a build from
// a working copy, which the go command derives, contains the commit.
func versions() string {
	version := "(devel)"
	if info, ok := debug.ReadBuildInfo(); ok {
		version = cmp.Or(info.Main.Version, version)
	}
	return fmt.Sprintf("pglock %s\n%s %s/%s\nschema version %d\n", version, runtime.Version(), runtime.GOOS, runtime.GOARCH, schema.Version)
}
