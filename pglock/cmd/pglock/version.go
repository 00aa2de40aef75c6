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

// versions returns the output of `pglock version` and `pglock --version`.
func versions() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		info = &debug.BuildInfo{}
	}
	return fmt.Sprintf("pglock %s\n%s %s/%s\nschema version %d\n",
		moduleVersion(info), runtime.Version(), runtime.GOOS, runtime.GOARCH, schema.Version)
}

// moduleVersion returns the release, and the commit if the build knows it.
func moduleVersion(info *debug.BuildInfo) string {
	version := cmp.Or(info.Main.Version, "(devel)")
	settings := map[string]string{}
	for _, s := range info.Settings {
		settings[s.Key] = s.Value
	}
	commit := settings["vcs.revision"]
	if commit == "" {
		return version
	}
	version += fmt.Sprintf(" (commit %.12s of %s", commit, settings["vcs.time"])
	if settings["vcs.modified"] == "true" {
		version += ", modified"
	}
	return version + ")"
}
