//go:build !base

package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"sync/atomic"

	"github.com/pglock/pglock-go/internal/bench/trial"
	"github.com/pglock/pglock-go/pglock"
)

// observerCrowds are the numbers of callers.
var observerCrowds = []int{1, distinctCrowd}

// observerRow is B11: the cost of observers. The observer counts the events that most dashboards need.
// The log is written at Debug as JSON, and discarded.
func observerRow() trial.Row {
	const off, counting, logging = "no observer", "an observer", "a log at Debug"
	r := &waitersLab{}
	row := trial.Row{Number: "B11", What: "acquire+release of distinct names, with observers", Prepare: r.lively, Throughput: true}
	for _, n := range observerCrowds {
		name := func(kind string) string { return fmt.Sprintf("%s, %d callers", kind, n) }
		add := func(kind string, role trial.Role, opts func() []pglock.Option) {
			row.Subjects = append(row.Subjects, trial.Subject{Name: name(kind), Role: role, Open: func(ctx context.Context, s *trial.Scope) (trial.Meter, error) {
				client, err := r.client(ctx, s, "pglock", opts()...)
				if err != nil {
					return nil, err
				}
				return &pairsMeter{goroutines: n, pair: func(ctx context.Context, name string) error {
					l, err := client.Acquire(ctx, name)
					if err != nil {
						return err
					}
					return l.Release(ctx)
				}}, nil
			}})
		}
		add(off, trial.Floor, func() []pglock.Option { return nil })
		add(counting, trial.Ours, func() []pglock.Option { return []pglock.Option{pglock.WithObserver(&counter{})} })
		add(logging, trial.Ours, func() []pglock.Option {
			return []pglock.Option{pglock.WithLogger(slog.New(slog.NewJSONHandler(io.Discard, &slog.HandlerOptions{Level: slog.LevelDebug})))}
		})
		for _, kind := range []string{counting, logging} {
			row.Targets = append(row.Targets, trial.Target{
				What: fmt.Sprintf("cost of a pair with %s, %d callers", kind, n), Rule: trial.AtMost(1.1),
				Ours: []trial.Ref{{Subject: name(kind), Figure: "cost of a pair"}}, Against: trial.Ref{Subject: name(off), Figure: "cost of a pair"},
			})
		}
	}
	return row
}

// counter is an observer that counts.
type counter struct {
	pglock.NopObserver
	acquired, released, renewed, lost atomic.Int64
}

func (c *counter) ObserveAcquire(context.Context, pglock.AcquireEvent) { c.acquired.Add(1) }
func (c *counter) ObserveRelease(context.Context, pglock.ReleaseEvent) { c.released.Add(1) }
func (c *counter) ObserveRenewal(context.Context, pglock.RenewalEvent) { c.renewed.Add(1) }
func (c *counter) ObserveLoss(context.Context, pglock.LossEvent)       { c.lost.Add(1) }
