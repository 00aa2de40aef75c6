// Demo shows on one machine what a lock is worth without fencing, and with it.
//
//	go run ./internal/demo
//
// Several processes deposit coins in one account: each reads the balance, thinks for a moment, and
// writes what it read plus one. A second table has an entry per deposit, so the truth is known.
//
//	act 1  no lock               deposits are lost
//	act 2  the lock alone        one holder is killed, another one is paused past its TTL and
//	                             woken: its late write loses deposits
//	act 3  the lock and a guard  the same, and the late writes are refused
//
// The parent starts workers (its own program again), which report on their standard output and get
// orders on their standard input, until that ends.
//
// The exit status is 0 if everything came about as expected (see judge), 1 if not or after a
// failure, and 130 after an interrupt. The workers, the schema and the server
// that the demo started are removed in every case.
package main

import (
	"context"
	"crypto/rand"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/internal/testserver"
	"github.com/pglock/pglock-go/migrations"
)

const (
	exitFailed      = 1
	exitInterrupted = 130
)

// demo is a size for the story. One worker of an act is killed, two are paused, and the story waits for
// the TTL five times.
type demo struct {
	workers int           // processes in each act
	rounds  int           // deposits for each of them, on average
	ttl     time.Duration // of the leases
	noGuard bool          // act 3 has no guard, as a control of the tests: then the demo must fail
}

func main() {
	testserver.Hook()
	if job, found := os.LookupEnv(workerVariable); found {
		os.Exit(work(job, ordersFrom(os.Stdin), os.Stdout, os.Stderr))
	}
	os.Exit(run(os.Stdout, os.Stderr))
}

func run(out, errs io.Writer) int {
	d := demo{workers: 4, rounds: 30, ttl: 2 * time.Second}
	// SIGPIPE means that the reader of the output is gone.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGPIPE)
	defer stop()
	context.AfterFunc(ctx, stop) // a second Ctrl-C doesn't wait for the clean-up
	err := errors.Join(d.perform(ctx, &story{out: out, begun: time.Now()}), testserver.Close())
	if err != nil {
		fmt.Fprintln(errs, "demo:", err)
	}
	switch {
	case ctx.Err() != nil:
		fmt.Fprintln(errs, "demo: interrupted")
		return exitInterrupted
	case err != nil:
		return exitFailed
	}
	return 0
}

// perform gets a server, which the demo may have to start, and plays on it.
func (d demo) perform(ctx context.Context, s *story) error {
	server, err := testserver.Get(ctx)
	if err != nil {
		return err
	}
	s.say("all", "%d processes, one account, three acts, on the server %s", d.workers, server)
	return d.play(ctx, server.URL, s)
}

// createSQL names no schema, because connections have it as their search_path.
//
//go:embed sql/create.sql
var createSQL string

// play performs the three acts in a schema of their own and judges them. It returns
// errNotAsExpected if the judgment is bad. When it returns, the workers have ended and the schema is
// dropped, even after ctx ended.
func (d demo) play(ctx context.Context, url string, s *story) (err error) {
	schema := "pglock_demo_" + strings.ToLower(rand.Text()[:10])
	pool, err := connect(ctx, url, schema, "parent")
	if err != nil {
		return err
	}
	defer pool.Close()
	defer func() {
		ctx, cancel := context.WithTimeout(context.Background(), 15*time.Second)
		defer cancel()
		if _, failed := pool.Exec(ctx, "DROP SCHEMA IF EXISTS "+schema+" CASCADE"); failed != nil {
			err = errors.Join(err, fmt.Errorf("schema %s is left behind: %w", schema, failed))
		}
	}()
	if err := migrations.Up(ctx, pool, migrations.WithSchema(schema)); err != nil {
		return err
	}
	if _, err := pool.Exec(ctx, createSQL); err != nil {
		return err
	}
	var results []result
	for _, a := range d.acts() {
		s.heading(fmt.Sprintf("Act %d  %s", a.number, a.about))
		p := &performance{act: a, demo: d, story: s, pool: pool, events: make(chan event, 100)}
		if err := p.play(ctx, assignment{URL: url, Schema: schema}); err != nil {
			return fmt.Errorf("act %d: %w", a.number, err)
		}
		results = append(results, p.result)
	}
	s.results(results)
	return s.verdict(judge(results[0], results[1], results[2]))
}

// connect opens a pool whose connections are named for who in pg_stat_activity.
func connect(ctx context.Context, url, schema, who string) (*pgxpool.Pool, error) {
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, err
	}
	config.MaxConns = 2
	config.ConnConfig.RuntimeParams["application_name"] = "pglock demo " + who
	config.ConnConfig.RuntimeParams["search_path"] = pgx.Identifier{schema}.Sanitize()
	return pgxpool.NewWithConfig(ctx, config)
}
