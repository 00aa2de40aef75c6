package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime/pprof"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/pglock/pglock-go/internal/bench/trial"
	"github.com/pglock/pglock-go/internal/testserver"
)

// The exit statuses.
const (
	exitMissed = 1
	exitBroken = 2
)

func main() {
	testserver.Hook()
	workerHook()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	status, err := run(ctx, os.Args[1:], os.Stdout)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	stop()
	os.Exit(status)
}

// command is the command line.
type command struct {
	rows    string
	keep    bool
	profile string
	scale   trial.Scale
}

func parse(args []string, out io.Writer) (command, error) {
	var c command
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.SetOutput(out)
	flags.StringVar(&c.rows, "row", "", "measure these rows only, such as B1 or B1,B6; results.json is left as it is without -keep")
	flags.BoolVar(&c.keep, "keep", false, "put the rows of -row into results.json, in the place of earlier ones, and draw them")
	flags.IntVar(&c.scale.Rounds, "rounds", 7, "rounds of each row")
	flags.IntVar(&c.scale.Turns, "turns", 25, "turns of each subject in a round")
	flags.DurationVar(&c.scale.Turn, "turn", 20*time.Millisecond, "length of a turn")
	flags.BoolVar(&c.scale.Short, "short", false, "see that it runs, in seconds: judge nothing, keep nothing")
	flags.StringVar(&c.profile, "cpuprofile", "", "write a CPU profile of this process to the `file`")
	if err := flags.Parse(args); err != nil {
		return c, err
	}
	if c.scale.Short {
		c.scale.Rounds, c.scale.Turns, c.scale.Turn = 1, 2, 10*time.Millisecond
	}
	if c.scale.Rounds < 1 || c.scale.Turns < 1 || c.scale.Turn <= 0 || flags.NArg() > 0 {
		return c, errors.New("bench: -rounds, -turns and -turn must be positive, and there are no arguments but flags")
	}
	if c.keep && c.scale.Short {
		return c, errors.New("bench: nothing of a short run is kept: -keep and -short contradict each other")
	}
	return c, nil
}

// run runs the command and returns its exit status.
func run(ctx context.Context, args []string, out io.Writer) (int, error) {
	c, err := parse(args, out)
	if errors.Is(err, flag.ErrHelp) {
		return 0, nil
	}
	if err != nil {
		return exitBroken, err
	}
	chosen, err := choose(rows(), c.rows)
	if err != nil {
		return exitBroken, err
	}
	if err := keepable(c); err != nil {
		return exitBroken, err
	}
	stopProfile, err := startProfile(c.profile)
	if err != nil {
		return exitBroken, err
	}
	results, err := measure(ctx, chosen, c.scale, out)
	if err := stopProfile(); err != nil {
		return exitBroken, err
	}
	if err != nil {
		return exitBroken, err
	}
	if err := keep(c, results); err != nil {
		return exitBroken, err
	}
	return sum(results, out), nil
}

// measure measures the rows one after the other and prints the table.
func measure(ctx context.Context, chosen []trial.Row, scale trial.Scale, out io.Writer) (trial.Results, error) {
	results := trial.Results{Conditions: &trial.Conditions{
		Time: time.Now().UTC().Truncate(time.Second), Rounds: scale.Rounds, Turns: scale.Turns, TurnMS: scale.Turn.Milliseconds(),
	}}
	var err error
	if results.Machine, err = describe(ctx); err != nil {
		return results, err
	}
	m := results.Machine
	fmt.Fprintf(out, "PostgreSQL %s, %v\n%s/%s, %d cores, %s, pgx %s, pglock %s\n%d rounds of %d turns of %v\n\n", m.Server, m.Settings,
		m.OS, m.Arch, m.Cores, m.Go, m.Driver, m.Module, scale.Rounds, scale.Turns, scale.Turn)
	for _, row := range chosen {
		outcome, err := trial.Run(ctx, row, scale)
		if err != nil {
			return results, err
		}
		results.Rows = append(results.Rows, outcome)
		if err := outcome.WriteFigures(out); err != nil {
			return results, err
		}
		fmt.Fprintln(out)
	}
	return results, trial.WriteTable(out, results.Rows)
}

// sum prints which targets were missed and which figures are unsteady, and returns the exit status.
func sum(results trial.Results, out io.Writer) int {
	status := 0
	for _, o := range results.Rows {
		for _, v := range o.Verdicts {
			if v.Status == trial.Miss {
				fmt.Fprintf(out, "%s misses its target: %s\n", o.Number, v.What)
				status = exitMissed
			}
			if v.Unsteady() {
				fmt.Fprintf(out, "%s is unsteady, measure again on a quiet machine: %s\n", o.Number, v.What)
			}
		}
	}
	return status
}

// rows returns all rows.
func rows() []trial.Row {
	return []trial.Row{pairRow(), distinctRow(), hotRow(), tryRow(), manyLeasesRow(), millionRow(), guardRow(), txRow(), growthRow(), waitersRow(), observerRow(), fairRow(), namesRow(), goroutinesRow()}
}

// choose returns the rows with the given numbers, separated by commas, or all rows.
func choose(all []trial.Row, numbers string) ([]trial.Row, error) {
	if numbers == "" {
		return all, nil
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

// startProfile writes a CPU profile to a file until stop is called. Without a name it does nothing.
func startProfile(name string) (stop func() error, err error) {
	if name == "" {
		return func() error { return nil }, nil
	}
	file, err := os.Create(name)
	if err != nil {
		return nil, err
	}
	if err := pprof.StartCPUProfile(file); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return func() error {
		pprof.StopCPUProfile()
		return file.Close()
	}, nil
}
