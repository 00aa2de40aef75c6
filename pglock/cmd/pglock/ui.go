package main

import (
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"

	"github.com/spf13/cobra"

	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/cmd/pglock/internal/doctor"
	"github.com/pglock/pglock-go/pglock/ui"
)

var accesses = map[string]ui.Access{"read": ui.Read, "operate": ui.Operate, "revoke": ui.Revoke}

func newUI(g *globals) *cobra.Command {
	var address, access string
	cmd := &cobra.Command{
		Use:   "ui",
		Short: "Serve a web page with locks, waiters and what blocks, for browsers on this machine",
		Long:  help("ui"),
		Args: func(cmd *cobra.Command, args []string) error {
			if _, known := accesses[access]; !known {
				return usage(cmd, "--access is unknown: must be read, operate or revoke")
			}
			return noArguments(cmd, args)
		},
		RunE: g.withClient(func(ctx context.Context, client *pglock.Client, out io.Writer, _ []string) error {
			page, err := g.page(client, accesses[access])
			if err != nil {
				return err
			}
			secret := ""
			if access != "read" { // the other accounts of this machine may not act
				secret = "/" + rand.Text()
			}
			mux := http.NewServeMux()
			mux.Handle(secret+"/", http.StripPrefix(secret, page))
			at, stop, err := serve("addr", address, mux)
			if err != nil {
				return err
			}
			defer stop()
			host, port, err := net.SplitHostPort(at.String())
			if ip, _ := netip.ParseAddr(host); err == nil && ip.IsUnspecified() {
				host = "127.0.0.1" // the page is for this machine, so no other address matters
			}
			if _, err := fmt.Fprintf(out, "http://%s%s\n", net.JoinHostPort(host, port), secret); err != nil {
				return err
			}
			<-ctx.Done()
			return nil
		}),
	}
	cmd.Flags().StringVar(&address, "addr", "127.0.0.1:7070", "the `address` to listen on")
	cmd.Flags().StringVar(&access, "access", "read", "what browsers on this machine may do: read, operate (ask for releases, run jobs) or revoke (and resolve keys)")
	return cmd
}

func (g *globals) page(client *pglock.Client, access ui.Access) (http.Handler, error) {
	return ui.Handler(client, ui.Options{
		Authorize: func(r *http.Request) ui.Access {
			if !ui.FromThisMachine(r) {
				return ui.None
			}
			return access
		},
		Doctor: func(ctx context.Context) (checks []ui.Check, _ error) {
			for _, r := range g.checks(ctx, doctor.Screen) {
				checks = append(checks, ui.Check{Name: r.Check, Level: string(r.Level), Found: r.Found, Remedy: r.Remedy})
			}
			return checks, nil
		},
		Logger: slog.New(slog.NewTextHandler(os.Stderr, nil)),
	})
}
