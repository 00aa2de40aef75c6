// Run starts a PostgreSQL server, runs a command whose tests use it, and removes the server.
//
//	go run ./internal/testserver/run go test ./...
//
// The exit status is the command's, or 1 if no server could be started.
package main

import (
	"os"

	"github.com/pglock/pglock-go/internal/testserver"
)

func main() {
	testserver.Hook()
	os.Exit(testserver.Run(os.Args[1:]))
}
