package readme_test

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/fencing"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/once"
	"github.com/pglock/pglock-go/pglock/pglocktest"
	"github.com/pglock/pglock-go/pglock/schedule"
)

// The service and the tests of docs/guides/testing.md.

var errBusy = errors.New("the account is busy")

type Ledger interface {
	InTx(ctx context.Context, fn func(tx fencing.Tx) error) error
	Add(tx fencing.Tx, account string, cents int) error
}

type Payouts struct {
	Locks  *pglock.Client
	Ledger Ledger
	Work   func(ctx context.Context) // before the write; nil: nothing
}

func (p *Payouts) Pay(ctx context.Context, account string, cents int) error {
	err := p.Locks.TryDo(ctx, "account:"+account, func(ctx context.Context, l *pglock.Lease) error {
		if p.Work != nil {
			p.Work(ctx)
		}
		return p.Ledger.InTx(context.WithoutCancel(ctx), func(tx fencing.Tx) error {
			if err := l.Guard(ctx, tx); err != nil {
				return err
			}
			return p.Ledger.Add(tx, account, cents)
		})
	})
	if errors.Is(err, pglock.ErrNotAcquired) {
		return errBusy
	}
	return err
}

// memory is a Ledger without a database, in the transactions of a fake.
type memory struct {
	locks *pglocktest.Locks
	cents map[string]int
}

func (m memory) InTx(ctx context.Context, fn func(tx fencing.Tx) error) error {
	before := maps.Clone(m.cents)
	err := pgx.BeginFunc(ctx, m.locks, func(tx pgx.Tx) error { return fn(tx) })
	if err != nil { // a guard was refused, or the lease was lost before the commit
		clear(m.cents)
		maps.Copy(m.cents, before)
	}
	return err
}

func (m memory) Add(_ fencing.Tx, account string, cents int) error {
	m.cents[account] += cents
	return nil
}

func TestTheAccountIsBusy(t *testing.T) {
	t.Parallel()
	k := pglocktest.Fake(t)
	p := &Payouts{Locks: k.Client, Ledger: memory{k, map[string]int{}}}
	other := k.Busy("account:a", "another replica")
	if err := p.Pay(t.Context(), "a", 5); !errors.Is(err, errBusy) {
		t.Errorf("while another replica pays: %v", err)
	}
	if err := other.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := p.Pay(t.Context(), "a", 5); err != nil {
		t.Errorf("after that: %v", err)
	}
	k.RequireFree("account:a")
}

func TestALateWriteIsRefused(t *testing.T) {
	t.Parallel()
	k := pglocktest.Fake(t)
	ledger := memory{k, map[string]int{}}
	p := &Payouts{Locks: k.Client, Ledger: ledger}
	p.Work = func(ctx context.Context) {
		l, err := pglock.Require(ctx, "account:a")
		if err != nil {
			t.Error(err)
			return
		}
		k.Pause(l)                             // this replica was suspended for longer than its TTL
		k.Busy("account:a", "another replica") // which has the lock by now
	}
	if err := p.Pay(t.Context(), "a", 5); !errors.Is(err, fencing.ErrStale) || ledger.cents["a"] != 0 {
		t.Errorf("%v, %d cents", err, ledger.cents["a"])
	}
}

func TestTheWorkStopsAtALoss(t *testing.T) {
	t.Parallel()
	k := pglocktest.Fake(t)
	ledger := memory{k, map[string]int{}}
	p := &Payouts{Locks: k.Client, Ledger: ledger}
	p.Work = func(ctx context.Context) {
		l, err := pglock.Require(ctx, "account:a")
		if err != nil {
			t.Error(err)
			return
		}
		k.Lose(l) // as when the operator revokes it, or the database was away for too long
		pglocktest.RequireContextEnds(t, ctx)
	}
	if err := p.Pay(t.Context(), "a", 5); !errors.Is(err, pglock.ErrLost) || ledger.cents["a"] != 0 {
		t.Errorf("%v, %d cents", err, ledger.cents["a"])
	}
}

func TestTheReportIsMadeOncePerNight(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		k := pglocktest.Fake(t)
		var reports atomic.Int32
		ctx, stop := context.WithTimeout(t.Context(), 3*24*time.Hour)
		defer stop()
		var replicas sync.WaitGroup
		for _, client := range []*pglock.Client{k.Client, k.Open()} {
			replicas.Go(func() {
				job, err := schedule.New(client, "nightly-report")
				if err == nil {
					err = job.Run(ctx, schedule.Daily("03:00", time.UTC), func(context.Context, *pglock.Lease) error {
						reports.Add(1)
						return nil
					})
				}
				if !errors.Is(err, context.DeadlineExceeded) {
					t.Error(err)
				}
			})
		}
		replicas.Wait()
		if reports.Load() != 3 {
			t.Errorf("%d reports in three days", reports.Load())
		}
	})
}

func TestAnUnknownPaymentIsNotRepeated(t *testing.T) {
	t.Parallel()
	k := pglocktest.Fake(t)
	payments := 0
	pay := func(context.Context, *pglock.Lease) (string, error) {
		payments++
		return "paid", nil
	}
	k.Crash("invoice:7", nil) // another replica has died while it paid
	_, err := once.Do(t.Context(), k.Client, "invoice:7", nil, pay)
	if !errors.Is(err, once.ErrOutcomeUnknown) || payments != 0 {
		t.Errorf("%v, and %d payments", err, payments)
	}
}

func TestEveryWriteIsGuarded(t *testing.T) {
	t.Parallel()
	pool := pgtest.PoolOn(t, pgtest.Database(t))
	if _, err := pool.Exec(t.Context(), "CREATE TABLE entries (account text NOT NULL, cents int NOT NULL)"); err != nil {
		t.Fatal(err)
	}
	k := pglocktest.New(t, pool)
	p := &Payouts{Locks: k.Client, Ledger: postgres{pool}}
	k.RequireGuarded(func() {
		if err := p.Pay(t.Context(), "a", 5); err != nil {
			t.Error(err)
		}
	}, "entries")
}

// postgres is a Ledger in the database.
type postgres struct{ pool *pgxpool.Pool }

func (l postgres) InTx(ctx context.Context, fn func(tx fencing.Tx) error) error {
	return pgx.BeginFunc(ctx, l.pool, func(tx pgx.Tx) error { return fn(tx) })
}

func (postgres) Add(tx fencing.Tx, account string, cents int) error {
	_, err := tx.Exec(context.Background(), "INSERT INTO entries VALUES ($1, $2)", account, cents)
	return err
}

func TestWithoutServer(t *testing.T) {
	t.Parallel()
	k := pglocktest.Fake(t)
	p := &Payouts{Locks: k.Client, Ledger: memory{k, map[string]int{}}}
	restore := k.Unavailable()
	if err := p.Pay(t.Context(), "a", 5); !errors.Is(err, pglock.ErrUnavailable) {
		t.Errorf("%v", err)
	}
	restore()
	if err := p.Pay(t.Context(), "a", 5); err != nil {
		t.Error(err)
	}
	if !slices.Contains(k.Events(), "released account:a") {
		t.Errorf("%q", k.Events())
	}
}
