package testserver

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
)

// Run starts the shared server, runs a command whose processes use it, and removes the server. It
// returns the command's exit status, or 1 if no server could be started. An interrupt ends the
// command first and then the server.
func Run(command []string) (status int) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	status, err := run(ctx, command)
	if err = errors.Join(err, Close()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		status = max(status, 1)
	}
	return status
}

func run(ctx context.Context, command []string) (status int, err error) {
	if len(command) == 0 {
		return 1, errors.New("testserver: no command: usage: run COMMAND [ARGUMENT...]")
	}
	server, err := Get(ctx)
	if err != nil {
		return 1, err
	}
	fmt.Fprintln(os.Stderr, "server:", server)
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) } // and wait for its end
	cmd.Env = server.Environ()
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	err = cmd.Run()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return max(exit.ExitCode(), 1), nil
	}
	return 0, err
}
