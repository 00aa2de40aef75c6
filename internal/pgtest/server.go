package pgtest

import (
	"context"
	"os"
	"testing"

	"github.com/pglock/pglock-go/internal/testserver"
)

// Server starts a private server, which is closed on cleanup. The end of its log is shown when the test
// failed.
func Server(tb testing.TB, options testserver.Options) *testserver.Server {
	tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	server, err := testserver.Start(ctx, options)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if tb.Failed() {
			tb.Logf("server log:\n%s", logEnd(server.LogFile()))
		}
		if err := server.Close(); err != nil {
			tb.Error(err)
		}
	})
	return server
}

// logEnd returns the last lines of a file.
func logEnd(path string) string {
	const most = 8 << 10
	text, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	return string(text[max(0, len(text)-most):])
}
