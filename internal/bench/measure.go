package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/pglock/pglock-go/internal/bench/trial"
)

// measure measures the rows one after the other and prints the table. When ctx is done, it prints what
// was measured so far, leaves the rest to the end of the process and returns errInterrupted.
func measure(ctx context.Context, chosen []trial.Row, c command, out, progressOut io.Writer) (results trial.Results, err error) {
	p := newProgress(progressOut, chosen, c.scale)
	results.Conditions = &trial.Conditions{Time: time.Now().UTC().Truncate(time.Second)}
	err = p.await(ctx, func() string { return "the machine" }, func() (err error) {
		results.Machine, err = describe(ctx)
		return err
	})
	if err != nil {
		return results, err
	}
	c.writeHead(out, results.Machine)
	if c.scale.Busy {
		burner, err := startBurner()
		if err != nil {
			return results, err
		}
		defer func() { _ = burner.end() }() // it has nothing to say
	}
	for _, row := range chosen {
		p.begin()
		outcome, failed := measureRow(ctx, p, row, c.scale)
		if outcome != nil {
			outcome.Measured = results.Conditions.At(outcome.Scale)
			results.Rows = append(results.Rows, outcome)
			failed = errors.Join(failed, outcome.WriteFigures(out))
			fmt.Fprintln(out)
		}
		if failed != nil {
			err = failed
			break
		}
	}
	return results, errors.Join(err, trial.WriteTable(out, results.Rows))
}

// measureRow measures a row. If it is interrupted, there may be an outcome of some rounds.
func measureRow(ctx context.Context, p *progress, row trial.Row, scale trial.Scale) (outcome *trial.Outcome, err error) {
	t := trial.New(row, scale)
	var whole *trial.Outcome
	err = p.await(ctx, t.Step, func() (err error) {
		whole, err = t.Run(ctx)
		return err
	})
	if !errors.Is(err, errInterrupted) {
		return whole, err
	}
	outcome, failed := t.SoFar()
	if failed != nil { // it judges what is there
		return nil, err
	}
	return outcome, err
}

// writeHead describes the run.
func (c command) writeHead(out io.Writer, m trial.Machine) {
	fmt.Fprintf(out, "PostgreSQL %s, %v\n%s/%s, %d cores, %s, pgx %s, pglock %s\n", m.Server, m.Settings,
		m.OS, m.Arch, m.Cores, m.Go, m.Driver, m.Module)
	s := c.scale
	fmt.Fprintf(out, "%d rounds of %d turns of %v; of throughput one turn of %v\n", s.Rounds, s.Turns, s.Turn, s.LongTurn)
	if s.Quick {
		fmt.Fprintln(out, "quick: an indication, with less of everything; nothing is kept")
	}
	if s.Busy {
		fmt.Fprintln(out, "busy: beside a process that burns a core")
	}
	fmt.Fprintln(out)
}

// startBurner starts a process that burns a core.
func startBurner() (*child, error) {
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	return startWorker(program, kindBurner)
}
