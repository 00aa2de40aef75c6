package leader_test

import (
	"context"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"time"

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

// An outage ends Observe, so a program that follows the leader for as long as it runs observes again.
func ExampleElection_Observe_again() {
	client, end := locktest.ExampleClient()
	defer end()
	ctx, shutdown := context.WithCancel(context.Background())
	e, err := leader.New(client, "scheduler")
	if err != nil {
		log.Fatal(err)
	}
	follow := func(l leader.Leader) {
		fmt.Println("there is a leader:", l.Elected())
		shutdown() // ends the example
	}

	for ctx.Err() == nil {
		for l, err := range e.Observe(ctx) {
			if err != nil {
				log.Print(err) // the next Observe waits for the database
				break
			}
			follow(l)
		}
		select { // if both are ready, either is right
		case <-time.After(time.Second):
		case <-ctx.Done():
		}
	}
	// Output: there is a leader: false
}

// A health check fails if the work of a leader continues although its leadership was lost, by an expiry or a
// revocation. The failureThreshold of the probe is the time that the work may need to stop.
func ExampleElection_Term() {
	client, end := locktest.ExampleClient()
	defer end()
	ctx := context.Background()

	e, err := leader.New(client, "scheduler")
	if err != nil {
		log.Fatal(err)
	}
	healthz := func(w http.ResponseWriter, _ *http.Request) {
		t, leads := e.Term()
		if t != nil && !leads {
			http.Error(w, "stale: "+t.Lease().Err().Error(), http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintf(w, "leads: %v", leads)
	}
	probe := func() int {
		w := httptest.NewRecorder()
		healthz(w, httptest.NewRequest(http.MethodGet, "/healthz", nil))
		return w.Code
	}
	t, err := e.Campaign(ctx, "10.0.0.7:8080")
	if err != nil {
		log.Fatal(err)
	}
	leads := probe()
	if err := client.Revoke(ctx, "scheduler", t.Lease().Token(), "deploy"); err != nil {
		log.Fatal(err)
	}
	lost := probe()
	_ = t.Resign(ctx) // when the work has ended
	fmt.Println(leads, lost, probe())
	// Output: 200 503 200
}

// Candidates are the waiters of the lock, and a leader that restarts hands its term over.
func Example_lock() {
	client, end := locktest.ExampleClient()
	defer end()
	ctx := context.Background()

	e, err := leader.New(client, "scheduler")
	if err != nil {
		log.Fatal(err)
	}
	t, err := e.Campaign(ctx, "10.0.0.7:8080")
	if err != nil {
		log.Fatal(err)
	}
	info, err := client.Get(ctx, "scheduler")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("candidates that wait:", len(info.Waiters))

	fence, err := t.Lease().HandOver() // give it to the next process, in a file or an environment
	if err != nil {
		log.Fatal(err)
	}
	lease, err := client.Adopt(ctx, fence) // there, before the lease expires
	if err != nil {
		log.Fatal(err)
	}
	l, err := e.Leader(ctx)
	fmt.Println("still the leader:", l.Payload, l.Token == lease.Token(), err)
	// Output:
	// candidates that wait: 0
	// still the leader: 10.0.0.7:8080 true <nil>
}
