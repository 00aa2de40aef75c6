package runner_test

import (
	"context"
	"fmt"
	"log"
	"sync"
	"testing/fstest"

	"github.com/pglock/pglock-go/internal/locktest"
	"github.com/pglock/pglock-go/pglock/runner"
)

// Four replicas of a service start at once, and each one migrates before it serves. One of them
// runs the files, and the others wait for it.
func ExampleRun() {
	ctx := context.Background()
	pool, end := locktest.ExamplePool("CREATE TABLE log (line text)") // creates a database
	defer end()
	files := fstest.MapFS{ // a service uses embed.FS
		"migrations/1_orders.up.sql": {Data: []byte("CREATE TABLE orders (id int); INSERT INTO log VALUES ('orders')")},
		"migrations/2_index.up.sql":  {Data: []byte("CREATE INDEX ON orders (id); INSERT INTO log VALUES ('index')")},
	}

	var replicas sync.WaitGroup
	for range 4 {
		replicas.Go(func() {
			if err := runner.Run(ctx, runner.Files(files, "migrations"), pool); err != nil {
				log.Fatal(err)
			}
		})
	}
	replicas.Wait()

	var lines []string
	if err := pool.QueryRow(ctx, "SELECT array_agg(line) FROM log").Scan(&lines); err != nil {
		log.Fatal(err)
	}
	fmt.Println(lines)
	// Output: [orders index]
}
