package oncehttp_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"time"

	"github.com/pglock/pglock-go/internal/locktest"
	"github.com/pglock/pglock-go/pglock/once"
	"github.com/pglock/pglock-go/pglock/once/oncehttp"
)

// A handler that inserts an order. Ten concurrent requests with one key insert one order, and all
// of them get its number.
func ExampleTxHandler() {
	pool, end := locktest.ExamplePool( // creates a database
		"CREATE TABLE orders (id bigint GENERATED ALWAYS AS IDENTITY, item text NOT NULL)")
	defer end()
	orders := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		tx, _ := oncehttp.TxFromContext(r.Context())
		var id int64
		err := tx.QueryRow(r.Context(), "INSERT INTO orders (item) VALUES ($1) RETURNING id", r.FormValue("item")).Scan(&id)
		if err != nil {
			http.Error(w, "try again", http.StatusServiceUnavailable) // rolls back
			return
		}
		w.WriteHeader(http.StatusCreated)
		fmt.Fprintf(w, "order %d", id)
	})
	handler, err := oncehttp.TxHandler(orders, pool, oncehttp.OneScope, oncehttp.RequireKey(), oncehttp.WithTx(once.WithWait(time.Minute)))
	if err != nil {
		log.Fatal(err)
	}

	var requests sync.WaitGroup
	answers := make([]string, 10)
	for i := range answers {
		requests.Go(func() {
			r := httptest.NewRequest(http.MethodPost, "/orders?item=book", nil)
			r.Header.Set("Idempotency-Key", "4711")
			w := httptest.NewRecorder()
			handler.ServeHTTP(w, r)
			answers[i] = w.Body.String()
		})
	}
	requests.Wait()
	var n int
	if err := pool.QueryRow(context.Background(), "SELECT count(*) FROM orders").Scan(&n); err != nil {
		log.Fatal(err)
	}
	fmt.Println(answers[0], "/", answers[9], "/ orders:", n)
	// Output: order 1 / order 1 / orders: 1
}

// A handler that charges a card at a bank. A client that repeats the request gets the first
// response. Another request under the same key is refused.
func ExampleHandler() {
	client, stop := locktest.ExampleClient() // in a schema of its own
	defer stop()
	charges := 0
	charge := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		charges++ // at the bank, with the key
		fmt.Fprintf(w, "charged %s", r.FormValue("amount"))
	})
	account := func(r *http.Request) string { user, _, _ := r.BasicAuth(); return user } // whose key it is; the login was checked before
	handler, err := oncehttp.Handler(charge, client, account, oncehttp.RequireKey())
	if err != nil {
		log.Fatal(err)
	}
	for _, amount := range []string{"20", "20", "99"} {
		r := httptest.NewRequest(http.MethodPost, "/charges?amount="+amount, nil)
		r.Header.Set("Idempotency-Key", "4711")
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		fmt.Println(w.Code, w.Body.String() == "charged 20", w.Header().Get("Idempotent-Replayed") == "true")
	}
	fmt.Println("charges:", charges)
	// Output:
	// 200 true false
	// 200 true true
	// 422 false false
	// charges: 1
}

// A client that encodes its JSON anew for each attempt: the members of an object may change their
// order, and the spaces.
func ExampleWithFingerprint() {
	client, stop := locktest.ExampleClient() // in a schema of its own
	defer stop()
	charges := 0
	charge := http.HandlerFunc(func(http.ResponseWriter, *http.Request) { charges++ })
	meaning := func(r *http.Request) ([]byte, error) {
		var body any
		decoder := json.NewDecoder(r.Body)
		decoder.UseNumber() // a float64 would make large numbers equal
		if err := decoder.Decode(&body); err != nil {
			return nil, err // 400
		}
		return json.Marshal(body) // in the order of the names
	}
	handler, err := oncehttp.Handler(charge, client, oncehttp.OneScope, oncehttp.WithFingerprint(meaning))
	if err != nil {
		log.Fatal(err)
	}
	for _, body := range []string{`{"card":1,"amount":20}`, `{ "amount": 20, "card": 1 }`, `{"card":1,"amount":99}`} {
		r := httptest.NewRequest(http.MethodPost, "/charges", strings.NewReader(body))
		r.Header.Set("Idempotency-Key", "4711")
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		fmt.Println(w.Code)
	}
	fmt.Println("charges:", charges)
	// Output:
	// 200
	// 200
	// 422
	// charges: 1
}
