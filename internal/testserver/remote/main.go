// Remote gets a PostgreSQL from Docker. It is a module of its own because it needs modules that no user
// of pglock is to download. Package testserver runs it:
//
//	go run . '{"Image": "postgres:17-alpine", "Patience": 60000000000}'
//
// Its argument is a testserver.Task, and it prints a testserver.Answer as one line of JSON. A
// container runs until the standard input ends, which it does even if the caller is killed.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/pglock/pglock-go/internal/testserver"
)

func main() {
	testserver.RemoveContainer = removeContainer
	testserver.Hook()
	signal.Ignore(os.Interrupt, syscall.SIGTERM) // the caller ends first
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run() error {
	var task testserver.Task
	if err := json.Unmarshal([]byte(os.Args[len(os.Args)-1]), &task); err != nil {
		return fmt.Errorf("remote: the argument is no task: %w", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin) // ends when the caller does
		cancel()
	}()
	var answer testserver.Answer
	var err error
	if answer.URL, err = startContainer(ctx, task); err != nil {
		answer.Error = err.Error()
	}
	if err := json.NewEncoder(os.Stdout).Encode(answer); err != nil {
		cancel() // the caller has left
	}
	<-ctx.Done()
	return testserver.Close()
}
