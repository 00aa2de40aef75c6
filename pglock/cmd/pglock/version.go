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
		Short: "Print the versions of pglock, Go and the tables it needs",
		Args:  noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintf(cmd.OutOrStdout(), "pglock %s\n%s %s/%s\nschema version %d\n",
				moduleVersion(), runtime.Version(), runtime.GOOS, runtime.GOARCH, schema.Version)
			return err
		},
	}
}

func moduleVersion() string {
	var version string
	if info, ok := debug.ReadBuildInfo(); ok {
		version = info.Main.Version
	}
	return cmp.Or(version, "(devel)")
}
