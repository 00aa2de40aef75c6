//go:build man

package main

import (
	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
)

// Only a release is built with the tag man, so that the command does not link what makes the pages.
func init() { extraCommands = append(extraCommands, newMan) }

func newMan(*globals) *cobra.Command {
	return &cobra.Command{
		Use:    "man DIRECTORY",
		Hidden: true,
		Args:   cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			cmd.Root().DisableAutoGenTag = true
			return doc.GenManTree(cmd.Root(), &doc.GenManHeader{Section: "1", Source: "pglock", Manual: "pglock"}, args[0])
		},
	}
}
