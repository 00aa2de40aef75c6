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
// orders on their standard input. A worker that is to be killed or paused is held between its read and
// its write until the signal has reached it, and woken when others have written.
//
// The exit status is 0 if everything came about as expected (see judge), 1 if not or after a
// failure, 2 after a usage error, and 130 after an interrupt. The workers, the schema and the server
// that the demo started are removed in every case.
package main

import (
	"context"
	"crypto/rand"
	_ "embed"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/internal/testserver"
	"github.com/pglock/pglock-go/migrations"
)

const (
	exitFailed      = 1
	exitUsage       = 2
	exitInterrupted = 130

	startTimeout = 8 * time.Minute // of the server, which may have to be downloaded
)

// demo is what the command line asks for.
type demo struct {
	workers int           // processes in each act
	rounds  int           // deposits for each of them, on average
	ttl     time.Duration // of the leases
	noGuard bool          // act 3 has no guard: then the demo must fail
}

func main() {
	testserver.Hook()
	if job, found := os.LookupEnv(workerVariable); found {
		os.Exit(work(job, ordersFrom(os.Stdin), os.Stdout, os.Stderr))
	}
	os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
}

func run(args []string, out, errs io.Writer) int {
	d, err := parseArgs(args, errs)
	if errors.Is(err, flag.ErrHelp) {
		return 0
	}
	if err != nil {
		return exitUsage
	}
	// SIGPIPE: nobody reads the output any more.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGPIPE)
	defer stop()
	context.AfterFunc(ctx, stop) // a second Ctrl-C doesn't wait for the clean-up
	err = d.perform(ctx, &story{out: out, begun: time.Now()})
	if failed := testserver.Close(); err == nil {
		err = failed
	}
	switch {
	case ctx.Err() != nil:
		if errors.Is(err, errLeftBehind) {
			fmt.Fprintln(errs, "demo:", err)
		}
		fmt.Fprintln(errs, "demo: interrupted")
		return exitInterrupted
	case err != nil:
		fmt.Fprintln(errs, "demo:", err)
		return exitFailed
	}
	return 0
}

// parseArgs reads the command line. It has written an error to errs when it returns one. One worker is
// killed, two are paused, and the demo waits for the TTL five times.
func parseArgs(args []string, errs io.Writer) (demo, error) {
	d := demo{workers: 4, rounds: 30, ttl: 2 * time.Second}
	flags := flag.NewFlagSet("demo", flag.ContinueOnError)
	flags.SetOutput(errs)
	flags.IntVar(&d.workers, "workers", d.workers, "processes in each act, `n` from 3 to 26")
	flags.DurationVar(&d.ttl, "ttl", d.ttl, "`duration` of a lease that isn't renewed, from 300ms to 10s")
	flags.BoolVar(&d.noGuard, "no-guard", false, "leave the guard out of act 3, to see the demo fail")
	err := flags.Parse(args)
	if err == nil && (flags.NArg() > 0 || d.workers < 3 || d.workers > 26 || d.ttl < 300*time.Millisecond || d.ttl > 10*time.Second) {
		err = errors.New("demo: invalid argument")
		fmt.Fprintln(errs, err)
		flags.Usage()
	}
	return d, err
}

// perform gets a server and plays on it.
func (d demo) perform(ctx context.Context, s *story) error {
	wait, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	server, err := testserver.Get(wait)
	if err != nil {
		return err
	}
	s.say("all", "%d processes, one account, three acts, on the server %s", d.workers, server)
	return d.play(ctx, server.URL, s)
}

// play performs the three acts in a schema of their own and judges them. It returns
// errNotAsExpected if the judgment is bad. When it returns, the workers have ended and the schema is
// dropped, even after ctx ended.
func (d demo) play(ctx context.Context, url string, s *story) (err error) {
	book := ledger{url: url, schema: "pglock_demo_" + strings.ToLower(rand.Text()[:10])}
	if book.pool, err = connect(ctx, url, book.schema, "parent"); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, book.drop()) }()
	if err := migrations.Up(ctx, book.pool, migrations.WithSchema(book.schema)); err != nil {
		return err
	}
	if _, err := book.pool.Exec(ctx, createSQL); err != nil {
		return err
	}
	var results []result
	for _, a := range d.acts() {
		r, err := d.playAct(ctx, a, book, s)
		if err != nil {
			return fmt.Errorf("act %d: %w", a.number, err)
		}
		results = append(results, r)
	}
	s.results(results)
	return s.verdict(judge(results[0], results[1], results[2]))
}

// createSQL names no schema, because connections have it as their search_path.
//
//go:embed sql/create.sql
var createSQL string

// ledger is a schema with the balances, the entries that say what they should be, and pglock's own
// tables.
type ledger struct {
	url, schema string
	pool        *pgxpool.Pool
}

// connect opens a pool. The server's view of its connections shows who.
func connect(ctx context.Context, url, schema, who string) (*pgxpool.Pool, error) {
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, err
	}
	config.MaxConns = 2
	config.ConnConfig.RuntimeParams["application_name"] = "pglock demo " + who
	config.ConnConfig.RuntimeParams["search_path"] = schema
	return pgxpool.NewWithConfig(ctx, config)
}

// errLeftBehind means that the schema could not be dropped.
var errLeftBehind = errors.New("left behind")

// drop removes the schema and closes the pool, also after an interrupt. The server soon notices that the
// workers are gone.
func (l ledger) drop() error {
	ctx, cancel := context.WithTimeout(context.Background(), 15*time.Second)
	defer cancel()
	defer l.pool.Close()
	if _, err := l.pool.Exec(ctx, "DROP SCHEMA IF EXISTS "+l.schema+" CASCADE"); err != nil {
		return fmt.Errorf("schema %s is %w: %w", l.schema, errLeftBehind, err)
	}
	return nil
}
