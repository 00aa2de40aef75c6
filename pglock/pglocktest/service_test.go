package pglocktest_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglock/pglock-go/fencing"
	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/leader"
	"github.com/pglock/pglock-go/pglock/once"
	"github.com/pglock/pglock-go/pglock/pglocktest"
	"github.com/pglock/pglock-go/pglock/schedule"
)

// payouts is a service as a user would write it: it keeps accounts, and knows nothing of tests.
type payouts struct {
	locks *pglock.Client
	bank  bank
	work  func(ctx context.Context) // between the lock and the write; nil: nothing
}

// bank is what the service writes to. Its transactions are the database's, or a fake's.
type bank interface {
	InTx(ctx context.Context, fn func(tx fencing.Tx) error) error
	Add(tx fencing.Tx, account string, cents int) error
}

// errBusy means that somebody else works on the account.
var errBusy = errors.New("the account is busy")

// Pay adds to an account, one payment of an account at a time.
func (p *payouts) Pay(ctx context.Context, account string, cents int) error {
	err := p.locks.Do(ctx, "account:"+account, func(ctx context.Context, l *pglock.Lease) error {
		return p.write(ctx, l, account, cents)
	})
	if err != nil {
		return fmt.Errorf("pay %s: %w", account, err)
	}
	return nil
}

// PayNow is Pay if nobody works on the account.
func (p *payouts) PayNow(ctx context.Context, account string, cents int) error {
	err := p.locks.TryDo(ctx, "account:"+account, func(ctx context.Context, l *pglock.Lease) error {
		return p.write(ctx, l, account, cents)
	})
	if errors.Is(err, pglock.ErrNotAcquired) {
		return errBusy
	}
	return err
}

// write adds to an account, under its lock.
func (p *payouts) write(ctx context.Context, l *pglock.Lease, account string, cents int) error {
	if p.work != nil {
		p.work(ctx)
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return p.bank.InTx(ctx, func(tx fencing.Tx) error {
		if err := l.Guard(ctx, tx); err != nil {
			return err
		}
		return p.bank.Add(tx, account, cents)
	})
}

// Interest pays a cent to each account, once a day among all replicas.
func (p *payouts) Interest(ctx context.Context, accounts []string, options ...schedule.Option) error {
	job, err := schedule.New(p.locks, "interest", options...)
	if err != nil {
		return err
	}
	return job.Run(ctx, schedule.Every(24*time.Hour), func(ctx context.Context, l *pglock.Lease) error {
		for _, account := range accounts {
			if err := p.write(ctx, l, account, 1); err != nil {
				return err
			}
		}
		return nil
	})
}

// Lead settles while this replica is the leader.
func (p *payouts) Lead(ctx context.Context, settle func(ctx context.Context)) error {
	return leader.Run(ctx, p.locks, "settlement", func(ctx context.Context, _ *leader.Term) error {
		settle(ctx)
		return nil
	})
}

// Handle pays once for each key.
func (p *payouts) Handle(ctx context.Context, key, account string, cents int) (string, error) {
	return once.Do(ctx, p.locks, key, nil, func(ctx context.Context, l *pglock.Lease) (string, error) {
		if err := p.write(ctx, l, account, cents); err != nil {
			return "", once.NotDone(err)
		}
		return "paid " + account, nil
	})
}

// inMemory is a bank without a database. What a transaction adds counts when it is committed.
type inMemory struct {
	begin interface {
		Begin(ctx context.Context) (pgx.Tx, error)
	}

	mu    sync.Mutex
	added map[fencing.Tx][]func()
	cents map[string]int
	log   []string
}

func newBank(k *pglocktest.Locks) *inMemory {
	return &inMemory{begin: k, added: map[fencing.Tx][]func(){}, cents: map[string]int{}}
}

func (b *inMemory) InTx(ctx context.Context, fn func(tx fencing.Tx) error) error {
	var begun fencing.Tx
	err := pgx.BeginFunc(ctx, b.begin, func(tx pgx.Tx) error { begun = tx; return fn(tx) })
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, add := range b.added[begun] {
		if err == nil {
			add()
		}
	}
	delete(b.added, begun)
	return err
}

func (b *inMemory) Add(tx fencing.Tx, account string, cents int) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.added[tx] = append(b.added[tx], func() {
		b.cents[account] += cents
		b.log = append(b.log, fmt.Sprintf("%s %d", account, cents))
	})
	return nil
}

// of returns what an account has.
func (b *inMemory) of(account string) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.cents[account]
}
