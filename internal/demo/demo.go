package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"time"
)

// demo is what is played.
type demo struct {
	workers int           // processes in each act
	rounds  int           // deposits for each of them, on average
	ttl     time.Duration // of the leases
	noGuard bool          // act 3 goes without its guard: then the demo must fail
}

const (
	minWorkers = 3 // one is killed, one is paused, one goes on
	maxWorkers = 26
	minRounds  = 10
	maxRounds  = 1000
	minTTL     = 300 * time.Millisecond // others must get some work done in it
	maxTTL     = 10 * time.Second       // the story waits for it five times
)

var defaults = demo{workers: 4, rounds: 30, ttl: 2 * time.Second}

// parseArgs reads the command line. What is wrong with it has been written to
// errs when it returns an error.
func parseArgs(args []string, errs io.Writer) (demo, error) {
	d := defaults
	flags := flag.NewFlagSet("demo", flag.ContinueOnError)
	flags.SetOutput(errs)
	flags.IntVar(&d.workers, "workers", d.workers, fmt.Sprintf("processes in each act, `n` from %d to %d", minWorkers, maxWorkers))
	flags.IntVar(&d.rounds, "rounds", d.rounds, fmt.Sprintf("deposits for each process on average, `n` from %d to %d", minRounds, maxRounds))
	flags.DurationVar(&d.ttl, "ttl", d.ttl, fmt.Sprintf("`duration` of a lease that isn't renewed, from %v to %v", minTTL, maxTTL))
	flags.BoolVar(&d.noGuard, "no-guard", false, "leave the guard out of act 3, to see the demo fail")
	if err := flags.Parse(args); err != nil {
		return d, err
	}
	err := d.check()
	if flags.NArg() > 0 {
		err = fmt.Errorf("unexpected argument %q", flags.Arg(0))
	}
	if err != nil {
		fmt.Fprintln(errs, "demo:", err)
	}
	return d, err
}

func (d demo) check() error {
	switch {
	case d.workers < minWorkers || d.workers > maxWorkers:
		return fmt.Errorf("--workers %d: must be from %d to %d", d.workers, minWorkers, maxWorkers)
	case d.rounds < minRounds || d.rounds > maxRounds:
		return fmt.Errorf("--rounds %d: must be from %d to %d", d.rounds, minRounds, maxRounds)
	case d.ttl < minTTL || d.ttl > maxTTL:
		return fmt.Errorf("--ttl %v: must be from %v to %v", d.ttl, minTTL, maxTTL)
	}
	return nil
}

// play performs the three acts in a schema of their own and judges them. It
// returns errNotAsExpected if the judgement is bad. When it returns, the workers
// have ended and the schema is dropped, also when ctx ended.
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
