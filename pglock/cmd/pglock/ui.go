package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/cmd/pglock/internal/doctor"
	"github.com/pglock/pglock-go/pglock/ui"
)

// accesses are the values of --access.
var accesses = map[string]ui.Access{"read": ui.Read, "operate": ui.Operate, "revoke": ui.Revoke}

func newUI(g *globals) *cobra.Command {
	address, access := "127.0.0.1:7070", "read"
	cmd := &cobra.Command{
		Use:   "ui",
		Short: "Serve a web page with locks, waiters and what blocks, for browsers on this machine",
		Long:  help("ui"),
		Args:  noArguments,
	}
	cmd.Flags().StringVar(&address, "addr", address, "the `address` to listen on")
	cmd.Flags().StringVar(&access, "access", access, "what browsers on this machine may do: read, operate (ask for releases) or revoke")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		granted, known := accesses[access]
		if !known {
			return usage(cmd, "--access is unknown: must be read, operate or revoke")
		}
		return g.withClient(func(ctx context.Context, client *pglock.Client, out io.Writer, _ []string) error {
			return g.serveUI(ctx, client, out, address, granted)
		})(cmd, args)
	}
	return cmd
}

// serveUI serves the page until ctx ends, which is no error.
func (g *globals) serveUI(ctx context.Context, client *pglock.Client, out io.Writer, address string, access ui.Access) error {
	page, err := ui.Handler(client,
		ui.WithAuthorize(func(r *http.Request) ui.Access {
			if !ui.FromThisMachine(r) {
				return ui.None
			}
			return access
		}),
		ui.WithDoctor(func(ctx context.Context) (checks []ui.Check, _ error) {
			for _, r := range g.checks(ctx, doctor.Roles[0]) {
				checks = append(checks, ui.Check{Name: r.Check, Level: string(r.Level), Found: r.Found, Remedy: r.Remedy})
			}
			return checks, nil
		}),
		ui.WithLogger(slog.New(slog.NewTextHandler(os.Stderr, nil))))
	if err != nil {
		return err
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if err != nil {
		return &failure{statusUsage, fmt.Errorf("--addr: %w", err)}
	}
	if _, err := fmt.Fprintf(out, "http://%s\n", listener.Addr()); err != nil {
		return err
	}
	server := &http.Server{Handler: page, ReadHeaderTimeout: 5 * time.Second, BaseContext: func(net.Listener) context.Context { return ctx }}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}
