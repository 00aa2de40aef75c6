package pglock_test

import (
	"context"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"

	"github.com/jackc/pgx/v5"

	"github.com/pglock/pglock-go/internal/locktest"
	"github.com/pglock/pglock-go/pglock"
)

// A handler charges once for each Idempotency-Key, however often the client repeats the request.
// The charge, the stored answer and the lock are one transaction: a request that arrives meanwhile
// waits, and then finds the answer.
func Example_idempotentHandler() {
	pool, end := locktest.ExamplePool( // creates a database
		"CREATE TABLE answers (key text PRIMARY KEY, answer text NOT NULL)")
	defer end()
	client, err := pglock.Open(context.Background(), pool)
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close(context.Background())

	var charges atomic.Int32
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		key := r.Header.Get("Idempotency-Key")
		var answer string
		err := client.DoTx(r.Context(), "request:"+key, func(ctx context.Context, tx pgx.Tx) error {
			err := tx.QueryRow(ctx, "SELECT answer FROM answers WHERE key = $1", key).Scan(&answer)
			if err != pgx.ErrNoRows { //nolint:errorlint // QueryRow returns it unwrapped
				return err // nil: the request was answered before
			}
			answer = fmt.Sprintf("charge %d", charges.Add(1)) // in the same database, in tx
			_, err = tx.Exec(ctx, "INSERT INTO answers VALUES ($1, $2)", key, answer)
			return err
		})
		if err != nil {
			http.Error(w, "try again", http.StatusServiceUnavailable)
			return
		}
		fmt.Fprint(w, answer)
	})

	var requests sync.WaitGroup
	answers := make([]string, 10)
	for i := range answers {
		requests.Go(func() {
			r := httptest.NewRequest(http.MethodPost, "/charges", nil)
			r.Header.Set("Idempotency-Key", "4711")
			w := httptest.NewRecorder()
			handler.ServeHTTP(w, r)
			answers[i] = w.Body.String()
		})
	}
	requests.Wait()
	fmt.Println(answers[0], "/", answers[9], "/ charges:", charges.Load())
	// Output: charge 1 / charge 1 / charges: 1
}
