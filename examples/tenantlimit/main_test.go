package main

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"

	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/pglocktest"
)

// TestLimits of two replicas. Exports run until the test ends them.
func TestLimits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		locks := pglocktest.Fake(t)
		running, finish := make(chan *pglock.Lease), make(chan bool)
		export := func(ctx context.Context, tenant string) ([]byte, error) {
			l, err := pglock.Require(ctx, "exports")
			if err != nil {
				return nil, err
			}
			running <- l
			select {
			case <-ctx.Done(): // the permits were lost
				return nil, context.Cause(ctx)
			case <-finish:
				return []byte(tenant), nil
			}
		}
		var replicas [2]http.ServeMux
		replicas[0].Handle("GET /exports/{tenant}", &exports{locks.Client, export})
		replicas[1].Handle("GET /exports/{tenant}", &exports{locks.Open(), export})
		get := func(replica int, tenant string) int {
			w := httptest.NewRecorder()
			replicas[replica].ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/exports/"+tenant, nil))
			return w.Code
		}
		start := func(replica int, tenant string) (*pglock.Lease, <-chan int) {
			status := make(chan int, 1)
			go func() { status <- get(replica, tenant) }()
			select {
			case l := <-running:
				return l, status
			case code := <-status:
				t.Fatalf("an export of %s does not run: status %d", tenant, code)
				return nil, nil
			}
		}
		require := func(what string, got, want int) {
			t.Helper()
			if got != want {
				t.Errorf("%s: status %d, want %d", what, got, want)
			}
		}

		lease, first := start(0, "red")
		_, second := start(1, "red")
		require("a third export of red", get(1, "red"), http.StatusTooManyRequests)
		_, third := start(1, "blue")
		require("a fourth export in total", get(0, "blue"), http.StatusTooManyRequests)
		locks.Lose(lease)
		require("an export that has lost its permits", <-first, http.StatusServiceUnavailable)
		_, fourth := start(0, "blue")
		close(finish)
		for _, status := range []<-chan int{second, third, fourth} {
			require("a complete export", <-status, http.StatusOK)
		}
		restore := locks.Unavailable()
		require("without a database", get(0, "red"), http.StatusServiceUnavailable)
		restore()
	})
}
