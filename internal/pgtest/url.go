package pgtest

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/pglock/pglock-go/internal/testserver"
)

// startTimeout bounds the wait for the shared server, which in the worst case has to be downloaded first.
const startTimeout = 8 * time.Minute

var (
	told    sync.Map  // the tests that logged already where the server came from
	explain sync.Once // the first of them also logs why it didn't come from elsewhere
)

// URL connects to the shared server as its superuser. Each test logs once where the server came from.
func URL(tb testing.TB) string {
	tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	server, err := testserver.Get(ctx)
	if err != nil {
		tb.Fatal(err)
	}
	if _, again := told.LoadOrStore(tb, true); !again {
		tb.Logf("server: %s", server)
		explain.Do(func() {
			for _, way := range server.Passed {
				tb.Logf("not %s", way)
			}
		})
		tb.Cleanup(func() { told.Delete(tb) })
	}
	return server.URL
}
