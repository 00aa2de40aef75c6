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
// The parent starts workers (its own program again). They report events to a table, where they also
// find the parent's orders:
//
//	parent ── begin, hold, resume, finish ──────▶ worker
//	parent ◀── ready, granted, holding, wrote, … ─ worker
//	parent ── SIGKILL, SIGSTOP, SIGCONT ────────▶ worker
//
// Nothing is left to luck: a worker that is to be killed or paused is held between its read and its
// write until the signal has reached it, and it is woken when the others have gone on.
//
// The exit status is 0 if everything came about as expected (see judge), 1 if not or after a
// failure, 2 after a usage error, and 130 after an interrupt. The workers, the schema and the server
// that the demo started are removed in every case.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/pglock/pglock-go/internal/testserver"
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

const (
	minWorkers, maxWorkers = 3, 26 // one is killed, one is paused, one goes on
	minRounds, maxRounds   = 10, 1000
	minTTL                 = 300 * time.Millisecond // time for some work
	maxTTL                 = 10 * time.Second       // the demo waits for it five times
)

func main() {
	testserver.Hook()
	if job, found := os.LookupEnv(workerVariable); found {
		os.Exit(work(job, os.Stdin, os.Stderr))
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

// parseArgs reads the command line. It has written an error to errs when it returns one.
func parseArgs(args []string, errs io.Writer) (demo, error) {
	d := demo{workers: 4, rounds: 30, ttl: 2 * time.Second}
	flags := flag.NewFlagSet("demo", flag.ContinueOnError)
	flags.SetOutput(errs)
	flags.IntVar(&d.workers, "workers", d.workers, fmt.Sprintf("processes in each act, `n` from %d to %d", minWorkers, maxWorkers))
	flags.IntVar(&d.rounds, "rounds", d.rounds, fmt.Sprintf("deposits for each process on average, `n` from %d to %d", minRounds, maxRounds))
	flags.DurationVar(&d.ttl, "ttl", d.ttl, fmt.Sprintf("`duration` of a lease that isn't renewed, from %v to %v", minTTL, maxTTL))
	flags.BoolVar(&d.noGuard, "no-guard", false, "leave the guard out of act 3, to see the demo fail")
	err := flags.Parse(args)
	if err != nil {
		return d, err
	}
	switch {
	case flags.NArg() > 0:
		err = fmt.Errorf("unexpected argument %q", flags.Arg(0))
	case d.workers < minWorkers || d.workers > maxWorkers:
		err = fmt.Errorf("--workers %d: must be from %d to %d", d.workers, minWorkers, maxWorkers)
	case d.rounds < minRounds || d.rounds > maxRounds:
		err = fmt.Errorf("--rounds %d: must be from %d to %d", d.rounds, minRounds, maxRounds)
	case d.ttl < minTTL || d.ttl > maxTTL:
		err = fmt.Errorf("--ttl %v: must be from %v to %v", d.ttl, minTTL, maxTTL)
	}
	if err != nil {
		fmt.Fprintln(errs, "demo:", err)
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
	book, err := createLedger(ctx, url)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, book.drop()) }()
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
