package main

import (
	"context"
	"errors"

	"github.com/spf13/cobra"

	"github.com/pglock/pglock-go/internal/errs"
	"github.com/pglock/pglock-go/pglock"
)

func newDefine(g *globals) *cobra.Command {
	var d pglock.Definition
	cmd := &cobra.Command{
		Use:   "define PATTERN",
		Short: "Define what the locks are for whose names match a pattern",
		Long: `Define what the locks are for whose names match a pattern. In a pattern, * is any text
and ? any character. Of several patterns that match a name, the one with the most
characters that are no wildcards counts. ls and show print the definition.

Clients that are told to (WithUndefined) warn of names without a definition or refuse
them, and use the TTL of the definition.`,
		Args: lockName,
		RunE: func(cmd *cobra.Command, args []string) error {
			d.Pattern = args[0]
			return g.withClient(func(ctx context.Context, client *pglock.Client) error {
				err := client.Define(ctx, d)
				if isAny(err, pglock.ErrInvalidName, pglock.ErrInvalidOption) {
					return usage(cmd, "%s", errs.Reason(err))
				}
				return err
			})
		},
	}
	cmd.Flags().DurationVar(&d.TTL, "ttl", 0, "the `time` after which the lock of a dead holder is free (default: the client's)")
	cmd.Flags().StringVar(&d.Team, "team", "", "the `team` that the locks belong to")
	cmd.Flags().StringVar(&d.Purpose, "purpose", "", "what the locks are `for`")
	return cmd
}

func newUndefine(g *globals) *cobra.Command {
	return &cobra.Command{
		Use:   "undefine PATTERN",
		Short: "Delete the definition of a pattern",
		Args:  lockName,
		RunE: func(_ *cobra.Command, args []string) error {
			return g.withClient(func(ctx context.Context, client *pglock.Client) error {
				err := client.Undefine(ctx, args[0])
				if errors.Is(err, pglock.ErrNotFound) {
					console{}.errorf("no definition of %q", args[0])
					return exitStatus(statusNoGrant)
				}
				return err
			})
		},
	}
}

// printDefinition adds the lines of a definition.
func printDefinition(line func(key, format string, args ...any), d pglock.Definition) {
	line("defined as", "%s", plain(d.Pattern))
	for _, field := range []struct{ key, text string }{{"team", d.Team}, {"purpose", d.Purpose}} {
		if field.text != "" {
			line(field.key, "%s", plain(field.text))
		}
	}
	if d.TTL > 0 {
		line("ttl", "%s", d.TTL)
	}
}

// definitionJSON is a definition in JSON. The TTL is in seconds.
type definitionJSON struct {
	Pattern string  `json:"pattern"`
	Team    string  `json:"team,omitempty"`
	Purpose string  `json:"purpose,omitempty"`
	TTL     float64 `json:"ttl,omitempty"`
}

// definitionOf returns the definition of a name, or nil.
func definitionOf(all []pglock.Definition, name string) *definitionJSON {
	d, ok := pglock.DefinitionOf(all, name)
	if !ok {
		return nil
	}
	return &definitionJSON{d.Pattern, d.Team, d.Purpose, d.TTL.Seconds()}
}

// teamOf returns the team of a name for the table.
func teamOf(all []pglock.Definition, name string) string {
	d, _ := pglock.DefinitionOf(all, name)
	return plain(d.Team)
}
