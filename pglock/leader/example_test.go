package leader_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"

	"github.com/pglock/pglock-go/internal/locktest"
	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/leader"
)

// One replica leads. The others wait, and one of them takes over when it stops.
func Example() {
	client, end := locktest.ExampleClient() // of one replica
	defer end()
	ctx, shutdown := context.WithCancel(context.Background())

	err := leader.Run(ctx, client, "scheduler", func(ctx context.Context, t *leader.Term) error {
		fmt.Println("leads, with a token:", t.Lease().Token() > 0)
		shutdown() // ends the example
		<-ctx.Done()
		return ctx.Err()
	})
	fmt.Println(err)
	// Output:
	// leads, with a token: true
	// context canceled
}

// Everybody can ask for the leader's address, and follow its changes.
func ExampleElection_Observe() {
	client, end := locktest.ExampleClient()
	defer end()
	ctx := context.Background()

	e, err := leader.New(client, "scheduler", leader.WithLease(pglock.WithHolder("replica-1")))
	if err != nil {
		log.Fatal(err)
	}
	t, err := e.Campaign(ctx, "10.0.0.7:8080")
	if err != nil {
		log.Fatal(err)
	}
	for l, err := range e.Observe(ctx) {
		if err != nil {
			log.Fatal(err)
		}
		if !l.Elected() {
			fmt.Println("no leader")
			break
		}
		fmt.Println(l.Name, "leads at", l.Payload)
		if l.Payload == "10.0.0.7:8080" {
			err = t.Proclaim(ctx, "10.0.0.7:9090") // it has moved
		} else {
			err = t.Resign(ctx)
		}
		if err != nil {
			log.Fatal(err)
		}
	}
	// Output:
	// replica-1 leads at 10.0.0.7:8080
	// replica-1 leads at 10.0.0.7:9090
	// no leader
}

// Before a deployment, the leader transfers its office to the replica that is up to date.
func ExampleTerm_Transfer() {
	client, end := locktest.ExampleClient()
	defer end()
	ctx := context.Background()

	e, err := leader.New(client, "scheduler")
	if err != nil {
		log.Fatal(err)
	}
	t, err := e.Campaign(ctx, "")
	if err != nil {
		log.Fatal(err)
	}
	if err := t.Transfer(ctx, "replica-2"); errors.Is(err, leader.ErrNoCandidate) {
		fmt.Println("replica-2 is not up: the term goes on:", t.Lease().Err() == nil)
	}
	if err := t.Resign(ctx); err != nil {
		log.Fatal(err)
	}
	// Output: replica-2 is not up: the term goes on: true
}

// A health check fails if the work of a leader goes on without its leadership.
func ExampleHealth() {
	client, end := locktest.ExampleClient()
	defer end()

	e, err := leader.New(client, "scheduler")
	if err != nil {
		log.Fatal(err)
	}
	handler := leader.Health(0, e)
	w := httptest.NewRecorder()
	handler.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/healthz", nil))
	fmt.Println(w.Code, w.Body)
	// Output: 200 "scheduler": does not lead
}
