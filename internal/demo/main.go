package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"time"

	"github.com/pglock/pglock-go/internal/testserver"
)

const (
	exitFailed      = 1
	exitUsage       = 2
	exitInterrupted = 130

	// serverPatience is for a server that has to be downloaded first.
	serverPatience = 8 * time.Minute
)

func main() {
	testserver.Hook()
	if isWorker() {
		os.Exit(work(os.Stdin, os.Stdout))
	}
	os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
}

func run(args []string, out *os.File, errs io.Writer) int {
	d, err := parseArgs(args, errs)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		return exitUsage
	}
	if err := checkSystem(); err != nil {
		fmt.Fprintln(errs, "demo:", err)
		return exitFailed
	}
	ctx, stop := signal.NotifyContext(context.Background(), endSignals...)
	defer stop()
	context.AfterFunc(ctx, stop) // a second Ctrl-C doesn't wait for the cleaning up

	switch err := d.perform(ctx, newStory(out)); {
	case ctx.Err() != nil && errors.Is(err, errLeftBehind):
		fmt.Fprintln(errs, "demo: interrupted:", err)
		return exitInterrupted
	case ctx.Err() != nil:
		fmt.Fprintln(errs, "demo: interrupted; nothing of it is left")
		return exitInterrupted
	case errors.Is(err, errNotAsExpected): // told in full already
		return exitFailed
	case err != nil:
		fmt.Fprintln(errs, "demo:", err)
		return exitFailed
	}
	return 0
}

// perform gets a server and plays on it.
func (d demo) perform(ctx context.Context, s *story) error {
	s.opening(d)
	wait, cancel := context.WithTimeout(ctx, serverPatience)
	defer cancel()
	server, err := testserver.Get(wait)
	if err != nil {
		return err
	}
	s.server(server.String())
	return d.play(ctx, server.URL, s)
}
