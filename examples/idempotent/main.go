// Idempotent serves charges of a card, one for each Idempotency-Key, however often a client repeats a request.
//
//	DATABASE_URL=postgres://localhost/shop go run ./idempotent & curl -u shop: -H 'Idempotency-Key: 1' localhost:8080/charges -d cents=500
//
// Two replicas, the second one with ADDR=:8081, give the same answer to the same request, and charge once. If
// one dies while the bank charges, the next request with the key asks the bank what has happened.
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log"
	"net/http"
	"net/url"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/migrations"
	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/once"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context) error {
	pool, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		return err
	}
	defer pool.Close()
	if err := migrations.Up(ctx, pool); err != nil {
		return err
	}
	client, err := pglock.Open(ctx, pool)
	if err != nil {
		return err
	}
	defer client.Close(ctx)
	mux := http.NewServeMux()
	mux.Handle("POST /charges", &charges{client, newDemoBank()})
	server := &http.Server{Addr: cmp.Or(os.Getenv("ADDR"), ":8080"), Handler: mux, ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 15 * time.Second}
	stopped := make(chan error, 1)
	context.AfterFunc(ctx, func() { stopped <- server.Shutdown(context.WithoutCancel(ctx)) }) // waits for charges
	log.Print("ready: serves charges at ", server.Addr)
	if err := server.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return <-stopped
}

type charges struct {
	client *pglock.Client
	bank   bank
}

// ServeHTTP charges once for each key of an account. The client repeats the request, with the same key, after
// 409 and 503 and after a broken connection.
func (c *charges) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	account, _, _ := r.BasicAuth() // a service has checked the password
	cents, err := strconv.ParseInt(r.FormValue("cents"), 10, 64)
	key := r.Header.Get("Idempotency-Key")
	if err != nil || cents <= 0 || key == "" {
		http.Error(w, "an Idempotency-Key and positive cents are required", http.StatusBadRequest)
		return
	}
	key = url.QueryEscape(account) + "/" + key // so that no account gets the answers of another one
	// A client that leaves does not end a charge, because it will ask for the answer later.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), 30*time.Second)
	defer cancel()
	receipt, err := once.Do(ctx, c.client, key, fmt.Append(nil, cents), func(ctx context.Context, _ *pglock.Lease) (string, error) {
		return c.bank.Charge(ctx, key, cents)
	}, once.WithWait(0), once.WithLookup(func(ctx context.Context, _ *pglock.Lease, s once.Started) (string, error) {
		return c.bank.Find(ctx, s.Key)
	}))
	switch {
	case err == nil:
		fmt.Fprintln(w, receipt)
	case errors.Is(err, once.ErrFailed):
		http.Error(w, err.Error(), http.StatusPaymentRequired)
	case errors.Is(err, once.ErrMismatch):
		http.Error(w, "the key was used for another amount", http.StatusUnprocessableEntity)
	case errors.Is(err, once.ErrInProgress):
		http.Error(w, "the charge is in progress", http.StatusConflict)
	default: // the database or the bank does not answer: the outcome may be unknown, and the next request asks
		log.Printf("charge %q: %v", key, err)
		http.Error(w, "try again with the same key", http.StatusServiceUnavailable)
	}
}
