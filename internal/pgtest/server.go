package pgtest

import (
	"context"
	"errors"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/pglock/pglock-go/internal/testserver"
)

// startTimeout bounds the start of a server, whose image may have to be pulled first.
const startTimeout = 8 * time.Minute

// explain lets the first test log which server they all share, and which ways to others failed.
var explain sync.Once

// URL connects to the shared server as its superuser.
func URL(tb testing.TB) string {
	tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	server, err := testserver.Get(ctx)
	if err != nil {
		tb.Fatal(err)
	}
	explain.Do(func() {
		tb.Logf("server: %s", server)
		for _, way := range server.Passed {
			tb.Logf("not %s", way)
		}
	})
	return server.URL
}

// Server starts a private server. Cleanup closes it, and shows the end of its log if the test
// failed. Without PostgreSQL's programs on this machine the test is skipped, see NeedTool.
func Server(tb testing.TB, options testserver.Options) *testserver.Server {
	tb.Helper()
	return start(tb, "postgres", testserver.ErrNoPrograms, func(ctx context.Context) (*testserver.Server, error) {
		return testserver.Start(ctx, options)
	})
}

// Standby starts a standby of a private server. Cleanup closes it. Without pg_basebackup the test is
// skipped, see NeedTool.
func Standby(tb testing.TB, primary *testserver.Server) *testserver.Server {
	tb.Helper()
	return start(tb, "pg_basebackup", testserver.ErrNoProgram, primary.Standby)
}

// start skips the test if the error says that the tool is missing.
func start(tb testing.TB, tool string, missing error, starter func(context.Context) (*testserver.Server, error)) *testserver.Server {
	tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	var server *testserver.Server
	var failed error
	NeedTool(tb, tool, func() error {
		if server, failed = starter(ctx); errors.Is(failed, missing) {
			return failed
		}
		return nil
	})
	if failed != nil {
		tb.Fatal(failed)
	}
	tb.Cleanup(func() {
		if tb.Failed() {
			log, _ := os.ReadFile(server.LogFile()) // an addition
			tb.Logf("server log:\n%s", log[max(0, len(log)-8<<10):])
		}
		if err := server.Close(); err != nil {
			tb.Error(err)
		}
	})
	return server
}
