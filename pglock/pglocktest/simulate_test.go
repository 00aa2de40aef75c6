package pglocktest_test

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/internal/sim"
	"github.com/pglock/pglock-go/pglock/leader"
	"github.com/pglock/pglock-go/pglock/pglocktest"
	"github.com/pglock/pglock-go/pglock/schedule"
)

// The services and worlds of docs/guides/simulate.md. Each has a switch for its mistake.

type Payments struct {
	Balances, Receipts *pglocktest.Table[int]
	Bank               func(ctx context.Context)
	noGuard            bool
}

func (s *Payments) Pay(ctx context.Context, p *pglocktest.Process, account string, cents int) error {
	return p.Do(ctx, "account:"+account, func(ctx context.Context, l *pglock.Lease) error {
		balance, err := s.Balances.Get(ctx, p, account)
		if err != nil {
			return err
		}
		s.Bank(ctx)
		ctx = context.WithoutCancel(ctx) // what the bank has done must be recorded
		return pgx.BeginFunc(ctx, p, func(tx pgx.Tx) error {
			if err := l.Guard(ctx, tx); err != nil && !s.noGuard {
				return err
			}
			s.Balances.Update(tx, account, func(int) int { return balance + cents })
			s.Receipts.Update(tx, account, func(sum int) int { return sum + cents })
			return nil
		})
	}, pglock.WithTTL(2*time.Second))
}

func paymentsWorld(mistake bool) func(w *pglocktest.World) {
	return func(w *pglocktest.World) {
		s := &Payments{Balances: pglocktest.NewTable[int](w), Receipts: pglocktest.NewTable[int](w), noGuard: mistake}
		s.Bank = func(ctx context.Context) { w.Sleep(ctx, time.Duration(w.Random(1000))*time.Millisecond) }
		w.Go("worker", 3, func(ctx context.Context, p *pglocktest.Process) {
			for ctx.Err() == nil {
				_ = s.Pay(ctx, p, "a", 5) // whatever has happened, it pays again
			}
		})
		w.Check(func() error {
			if balance, paid := s.Balances.All()["a"], s.Receipts.All()["a"]; balance != paid {
				return fmt.Errorf("lost payment: the balance is %d, the receipts say %d", balance, paid)
			}
			return nil
		})
	}
}

func TestPayments(t *testing.T) { pglocktest.Simulate(t, paymentsWorld(false)) }

type Reports struct {
	Made        *pglocktest.Table[int]
	byWallClock bool
}

func (s *Reports) Serve(ctx context.Context, p *pglocktest.Process) error {
	job, err := schedule.New(p.Client, "report", schedule.WithTTL(time.Second), schedule.WithLogger(slog.New(slog.DiscardHandler)))
	if err != nil {
		return err
	}
	return job.Run(ctx, schedule.Every(10*time.Second), func(ctx context.Context, l *pglock.Lease) error {
		night, _ := schedule.TickFromContext(ctx)
		if s.byWallClock {
			night = time.Now()
		}
		return pgx.BeginFunc(ctx, p, func(tx pgx.Tx) error {
			if err := l.Guard(ctx, tx); err != nil {
				return err
			}
			s.Made.Update(tx, night.UTC().Format("15:04:05"), func(int) int { return 1 }) // ON CONFLICT DO NOTHING
			return nil
		})
	})
}

func reportsWorld(mistake bool) func(w *pglocktest.World) {
	return func(w *pglocktest.World) {
		s := &Reports{Made: pglocktest.NewTable[int](w), byWallClock: mistake}
		w.Go("replica", 3, func(ctx context.Context, p *pglocktest.Process) { _ = s.Serve(ctx, p) })
		w.Check(func() error {
			made := slices.Sorted(maps.Keys(s.Made.All()))
			for i, report := range made[:max(len(made)-1, 0)] {
				if next := made[i+1]; next[:7] == report[:7] { // a night takes ten seconds
					return fmt.Errorf("two reports of one night: %s and %s", report, next)
				}
			}
			return nil
		})
	}
}

func TestReports(t *testing.T) { pglocktest.Simulate(t, reportsWorld(false)) }

func leadersWorld(mistake bool) func(w *pglocktest.World) {
	return func(w *pglocktest.World) {
		w.Synchronous() // otherwise a leader whose grant is lost stays in office for up to a TTL
		w.SteadyClock()
		var leaders atomic.Int32
		w.Go("candidate", 3, func(ctx context.Context, p *pglocktest.Process) {
			e, err := leader.New(p.Client, "scheduler", leader.WithLease(pglock.WithTTL(2*time.Second)))
			if err != nil {
				w.Failf("election: %v", err)
				return
			}
			for ctx.Err() == nil {
				term, err := e.Campaign(ctx, p.Name())
				if err != nil {
					continue
				}
				work := term.Lease().Context()
				if mistake {
					work = ctx
				}
				leaders.Add(1)
				w.Sleep(work, time.Duration(1+w.Random(5))*time.Second)
				leaders.Add(-1)
				_ = term.Resign(ctx)
			}
		})
		w.Check(func() error {
			if n := leaders.Load(); n > 1 {
				return fmt.Errorf("one leader: %d lead", n)
			}
			return nil
		})
	}
}

func TestLeaders(t *testing.T) { pglocktest.Simulate(t, leadersWorld(false)) }

var update = flag.Bool("update", false, "write payments.txt, which docs/guides/simulate.md shows: go test ./pglock/pglocktest -run TestSimulateFindsMistakes -update")

// keepSample writes the first failure of a few lines as TestPayments would say it, without the statements
// that had no effect.
func keepSample(t *testing.T, world func(w *pglocktest.World)) {
	t.Helper()
	var sample string
	for seed := uint64(0); strings.Count(sample, "\n") < 10 || strings.Count(sample, "\n") > 16 || strings.Count(sample, "\tat") > 3; {
		failure, runs := sim.Search(t, seed+1, 2000, time.Minute, pglocktest.In(world))
		seed += runs
		sample = regexp.MustCompile(`(?m)^.* · .*\n`).ReplaceAllString(failure, "")
	}
	sample = strings.ReplaceAll(sample, t.Name(), "TestPayments") + "\n"
	if err := os.WriteFile("testdata/payments.txt", []byte(sample), 0o600); err != nil {
		t.Fatal(err)
	}
}

// TestSimulateFindsMistakes: the same services with their mistakes.
func TestSimulateFindsMistakes(t *testing.T) {
	for broken, world := range map[string]func(mistake bool) func(w *pglocktest.World){
		"lost payment": paymentsWorld, "two reports of one night": reportsWorld, "one leader": leadersWorld,
	} {
		t.Run(broken, func(t *testing.T) {
			failure, runs := sim.Search(t, 1, 2000, time.Minute, pglocktest.In(world(true)))
			if !strings.Contains(failure, broken) || !strings.Contains(failure, "PGLOCK_SEED=") {
				t.Fatalf("%d worlds: %s", runs, failure)
			}
			t.Logf("world %d: %s", runs, failure)
			if *update && broken == "lost payment" {
				keepSample(t, world(true))
			}
		})
	}
}
