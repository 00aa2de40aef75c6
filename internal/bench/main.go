package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/pglock/pglock-go/internal/bench/trial"
	"github.com/pglock/pglock-go/internal/testserver"
)

// The exit statuses.
const (
	exitMissed      = 1
	exitBroken      = 2
	exitInterrupted = 130
)

// errInterrupted ends a run whose figures so far were printed.
var errInterrupted = errors.New("bench: interrupted: what is above is all that was measured")

func main() {
	testserver.Hook()
	workerHook()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	status, err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	os.Exit(status) // the keeper ends the servers of an interrupted run
}

// command is the command line.
type command struct {
	rows  string
	keep  bool
	base  string
	scale trial.Scale
}

func parse(args []string, out io.Writer) (command, error) {
	c := command{scale: trial.Scale{Turns: 25, Turn: 20 * time.Millisecond}}
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.SetOutput(out)
	flags.StringVar(&c.rows, "row", "", "measure these rows only, such as B1 or B1,B6; results.json is left as it is without -keep")
	flags.BoolVar(&c.keep, "keep", false, "put the rows of -row into results.json, in the place of earlier ones, and draw them")
	flags.IntVar(&c.scale.Rounds, "rounds", 5, "rounds of each row")
	flags.DurationVar(&c.scale.LongTurn, "long", time.Second, "length of the one turn in a round of a row that counts operations per second, after a warm-up of half of it")
	flags.BoolVar(&c.scale.Quick, "quick", false, "measure less, in minutes: an indication, nothing is kept")
	flags.BoolVar(&c.scale.Short, "short", false, "see that it runs, in seconds: judge nothing, keep nothing")
	flags.StringVar(&c.base, "base", "", "compare with the module at this `commit or directory`, in the rows "+strings.Join(baseRows, ", ")+"; nothing is kept")
	if err := flags.Parse(args); err != nil {
		return c, err
	}
	switch {
	case c.scale.Short:
		c.scale.Rounds, c.scale.Turns, c.scale.Turn, c.scale.LongTurn = 1, 2, 10*time.Millisecond, time.Second
	case c.scale.Quick:
		c.scale.Rounds, c.scale.Turns, c.scale.LongTurn = 3, 5, 250*time.Millisecond
	}
	if c.scale.Rounds < 1 || c.scale.LongTurn <= 0 || flags.NArg() > 0 {
		return c, errors.New("bench: -rounds and -long must be positive, and there are no arguments but flags")
	}
	if c.keep && !c.complete() {
		return c, errors.New("bench: nothing of a short or quick run, or with -base, is kept: leave -keep out")
	}
	return c, nil
}

// run runs the command and returns its exit status.
func run(ctx context.Context, args []string, out, progress io.Writer) (int, error) {
	c, err := parse(args, out)
	if errors.Is(err, flag.ErrHelp) {
		return 0, nil
	}
	if err != nil {
		return exitBroken, err
	}
	chosen, err := choose(rows(), c.rows, c.scale.Short)
	if err != nil {
		return exitBroken, err
	}
	path, err := c.keptIn()
	if err != nil {
		return exitBroken, err
	}
	if c.base != "" {
		if chosen, err = addBase(ctx, chosen, c.base); err != nil {
			return exitBroken, err
		}
	}
	results, err := measure(ctx, chosen, c.scale, out, progress)
	switch {
	case errors.Is(err, errInterrupted):
		return exitInterrupted, err
	case err != nil:
		return exitBroken, err
	}
	if path != "" {
		if err := keepIn(path, results); err != nil {
			return exitBroken, err
		}
	}
	return sum(results, out), nil
}

// sum prints which targets were met and missed and which figures are unsteady, and returns the exit status.
func sum(results trial.Results, out io.Writer) int {
	status := 0
	for _, o := range results.Rows {
		for _, v := range o.Verdicts {
			switch v.Status {
			case trial.Pass:
				fmt.Fprintf(out, "%s meets its target %s: %s\n", o.Number, v.Target, v.Figure())
			case trial.Miss:
				fmt.Fprintf(out, "%s misses its target %s: %s\n", o.Number, v.Target, v.Figure())
				status = exitMissed
			}
			if v.Unsteady {
				fmt.Fprintf(out, "%s is unsteady, don't quote it and measure again on a quiet machine: %s\n", o.Number, v.What)
			}
		}
	}
	return status
}

// choose returns the rows with the given numbers, separated by commas, or all rows, of which the long ones
// belong to a short run only.
func choose(all []trial.Row, numbers string, short bool) ([]trial.Row, error) {
	if numbers == "" {
		return slices.DeleteFunc(slices.Clone(all), func(r trial.Row) bool { return r.Long && !short }), nil
	}
	var chosen []trial.Row
	for number := range strings.SplitSeq(numbers, ",") {
		i := slices.IndexFunc(all, func(r trial.Row) bool { return strings.EqualFold(r.Number, number) })
		if i < 0 {
			return nil, fmt.Errorf("bench: no row %q", number)
		}
		chosen = append(chosen, all[i])
	}
	return chosen, nil
}
