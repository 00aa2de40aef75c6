package fencehttp_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"

	"github.com/pglock/pglock-go/fencing"
	"github.com/pglock/pglock-go/fencing/fencehttp"
)

// A service outside the database refuses the requests of a holder that was overtaken.
func ExampleHandler() {
	store := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })
	server := httptest.NewServer(fencehttp.Handler(store, &fencing.MemoryChecker{}))
	defer server.Close()
	client := &http.Client{Transport: &fencehttp.Transport{}}
	defer client.CloseIdleConnections()

	put := func(f fencing.Fence) error {
		// With a lease: fencehttp.NewContext(lease.Context(), lease.Fence()).
		ctx := fencehttp.NewContext(context.Background(), f)
		r, err := http.NewRequestWithContext(ctx, http.MethodPut, server.URL, http.NoBody)
		if err != nil {
			return err
		}
		answer, err := client.Do(r)
		if err != nil {
			return err
		}
		defer answer.Body.Close()
		return fencehttp.CheckResponse(answer)
	}
	fmt.Println(put(fencing.Fence{Name: "invoice:7", Token: 34}))
	fmt.Println(put(fencing.Fence{Name: "invoice:7", Token: 33}))
	// Output:
	// <nil>
	// fencing: stale grant: grant 33 of "invoice:7", where 34 is the newest
}
