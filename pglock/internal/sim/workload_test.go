package sim

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglock/pglock-go/fencing"
	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/leader"
	"github.com/pglock/pglock-go/pglock/once"
	"github.com/pglock/pglock-go/pglock/schedule"
)

// stage is what the processes of a workload share.
type stage struct {
	w        *World
	balances *Table[int]
	effects  *Table[int] // of idempotency keys
	ticks    *Table[int] // of a schedule: runs that were committed

	mu     sync.Mutex
	handed []fencing.Fence
	terms  []fencing.Token
}

// actor is a process of the workload.
type actor struct {
	*Node
	stage *stage
	*rand.Rand
	ctx context.Context
}

// everything starts six processes that do all that a client can do.
func everything(w *World) {
	s := &stage{w: w, balances: NewTable[int](w), effects: NewTable[int](w), ticks: NewTable[int](w)}
	w.Go("worker", 6, s.work)
}

func (s *stage) work(ctx context.Context, p *Node) {
	r := rand.New(rand.NewPCG(s.w.plan.seed, uint64(p.id)+1000))
	a := &actor{p, s, r, ctx}
	var tasks sync.WaitGroup
	for range 1 + r.IntN(2) {
		seed := r.Uint64()
		tasks.Go(func() {
			b := *a
			b.Rand = rand.New(rand.NewPCG(seed, 1))
			for ctx.Err() == nil {
				b.step()
				sleep(ctx, between(b.Rand, 0, 2*time.Second))
			}
		})
	}
	if r.IntN(3) == 0 {
		tasks.Go(a.campaign)
	}
	if r.IntN(3) == 0 {
		tasks.Go(a.serve)
	}
	tasks.Wait()
}

func pick[T any](r *rand.Rand, of ...T) T { return of[r.IntN(len(of))] }

func (a *actor) ttl() pglock.LeaseOption {
	return pglock.WithTTL(pick(a.Rand, 300*time.Millisecond, time.Second, 2*time.Second, 5*time.Second))
}

func (a *actor) options() (all []pglock.LeaseOption) {
	all = append(all, a.ttl())
	switch a.IntN(12) {
	case 0:
		all = append(all, pglock.WithBarging())
	case 1:
		all = append(all, pglock.WithMinHold(between(a.Rand, time.Millisecond, time.Second)))
	case 2:
		all = append(all, pglock.WithMaxHold(between(a.Rand, 100*time.Millisecond, 2*time.Second)))
	case 3, 4:
		all = append(all, pglock.WithWait(between(a.Rand, 0, 3*time.Second)))
	}
	return all
}

// lock returns a lock of any kind.
func (a *actor) lock() pglock.Lock {
	switch a.IntN(10) {
	case 0, 1:
		return a.Semaphore("semaphore", 3)
	case 2:
		return a.Semaphore("semaphore", 3).Weight(pick(a.Rand, 2, 3))
	case 3, 4:
		return a.Reader("readers")
	case 5:
		return a.Writer("readers")
	case 6:
		return a.All(a.Lock("lock 0"), a.Lock("lock 1"))
	}
	return a.Lock(fmt.Sprint("lock ", a.IntN(3)))
}

func (a *actor) step() {
	l := a.lock()
	switch a.IntN(12) {
	case 0:
		_ = a.nested()
	case 1:
		a.adopt()
	case 2:
		a.runOnce()
	case 3:
		a.revokeSomebody()
	case 4:
		lease, err := l.TryAcquire(a.ctx, a.options()...)
		a.use(lease, err)
	default:
		ctx, cancel := a.ctx, context.CancelFunc(func() {})
		if a.IntN(4) == 0 {
			ctx, cancel = context.WithTimeout(ctx, between(a.Rand, 0, 4*time.Second))
		}
		lease, err := l.Acquire(ctx, a.options()...)
		cancel()
		a.use(lease, err)
	}
}

// use does what one does under a lease, and then ends it in one of the ways.
func (a *actor) use(l *pglock.Lease, err error) {
	if err != nil {
		return
	}
	for range a.IntN(3) {
		sleep(l.Context(), between(a.Rand, 0, time.Second))
		switch a.IntN(6) {
		case 0:
			_ = l.Extend(a.ctx, between(a.Rand, time.Second, 5*time.Second))
		case 1:
			_ = l.Downgrade(a.ctx)
		case 2:
			if up, err := l.TryUpgrade(a.ctx); err == nil {
				l = up
			}
		case 3:
			_ = l.KeepPermits(a.ctx, 1)
		default:
			a.write(l)
		}
	}
	if a.IntN(12) == 0 {
		if f, err := l.HandOver(); err == nil {
			a.stage.mu.Lock()
			a.stage.handed = append(a.stage.handed, f)
			a.stage.mu.Unlock()
			return
		}
	}
	_ = l.Release(a.ctx)
}

// write adds 1 to a balance that it has read before.
func (a *actor) write(l *pglock.Lease) {
	if names := l.Names(); len(names) > 1 || names[0] == "semaphore" || names[0] == "readers" {
		return
	}
	seen := a.stage.balances.Get(l.Name())
	sleep(a.ctx, between(a.Rand, 0, 500*time.Millisecond)) // it does not look at its lease
	_ = pgx.BeginFunc(a.ctx, a.Node, func(tx pgx.Tx) error {
		if err := l.Guard(a.ctx, tx); err != nil {
			return err
		}
		sleep(a.ctx, between(a.Rand, 0, 300*time.Millisecond))
		a.stage.balances.Update(tx, l.Name(), func(balance int) int {
			if balance != seen {
				a.stage.w.failf("I4: %s, token %d, writes to %q what it has computed of %d, and finds %d", a.name, l.Token(), l.Name(), seen, balance)
			}
			return seen + 1
		})
		return nil
	})
}

func (a *actor) nested() error {
	first, second := "nested 0", "nested 1"
	if a.IntN(2) == 0 {
		first, second = second, first
	}
	return a.Do(a.ctx, first, func(ctx context.Context, _ *pglock.Lease) error {
		sleep(ctx, between(a.Rand, 0, 100*time.Millisecond))
		return a.Do(ctx, second, func(ctx context.Context, _ *pglock.Lease) error {
			sleep(ctx, between(a.Rand, 0, 100*time.Millisecond))
			return nil
		}, a.ttl())
	}, a.ttl())
}

func (a *actor) adopt() {
	a.stage.mu.Lock()
	var f fencing.Fence
	if len(a.stage.handed) > 0 {
		f, a.stage.handed = a.stage.handed[0], a.stage.handed[1:]
	}
	a.stage.mu.Unlock()
	if f.Token != 0 {
		lease, err := a.Adopt(a.ctx, f, a.ttl())
		a.use(lease, err)
	}
}

func (a *actor) revokeSomebody() {
	name := fmt.Sprint("lock ", a.IntN(3))
	at, err := a.Get(a.ctx, name)
	if err != nil || !at.Held() {
		return
	}
	if a.IntN(2) == 0 {
		_ = a.Revoke(a.ctx, name, at.Token, "a test")
	} else {
		_ = a.RequestRelease(a.ctx, name, at.Token, "a test")
	}
}

// runOnce has an effect that must happen once, beside the record of its key.
func (a *actor) runOnce() {
	key := fmt.Sprint("key ", int(a.stage.w.Now().Seconds())/4)
	_, _ = once.Do(a.ctx, a.Client, key, nil, func(ctx context.Context, l *pglock.Lease) (int, error) {
		sleep(ctx, between(a.Rand, 0, 500*time.Millisecond))
		err := pgx.BeginFunc(ctx, a.Node, func(tx pgx.Tx) error {
			if err := l.Guard(ctx, tx); err != nil {
				return err
			}
			a.stage.effects.Update(tx, key, func(n int) int {
				if n > 0 {
					a.stage.w.failf("once: the effect of %q happens again", key)
				}
				return n + 1
			})
			return nil
		})
		return 1, err
	}, once.WithLease(a.ttl()))
}

// campaign leads an election now and then.
func (a *actor) campaign() {
	e, err := leader.New(a.Client, "election", leader.WithLease(pglock.WithTTL(2*time.Second)))
	if err != nil {
		a.stage.w.Failf("leader: %v", err)
		return
	}
	for a.ctx.Err() == nil {
		term, err := e.Campaign(a.ctx, a.name)
		if err != nil {
			sleep(a.ctx, 100*time.Millisecond)
			continue
		}
		a.stage.mu.Lock()
		if slices.ContainsFunc(a.stage.terms, func(t fencing.Token) bool { return t >= term.Lease().Token() }) {
			a.stage.w.Failf("leader: a term with the token %d after %v", term.Lease().Token(), a.stage.terms)
		}
		a.stage.terms = append(a.stage.terms, term.Lease().Token())
		a.stage.mu.Unlock()
		sleep(term.Lease().Context(), between(a.Rand, 0, 3*time.Second))
		_ = term.Resign(a.ctx)
		sleep(a.ctx, between(a.Rand, 0, 3*time.Second))
	}
}

// serve runs a job each second.
func (a *actor) serve() {
	j, err := schedule.New(a.Client, "job", schedule.WithTTL(3*time.Second), schedule.WithLogger(slog.New(slog.DiscardHandler)))
	if err != nil {
		a.stage.w.Failf("schedule: %v", err)
		return
	}
	_ = j.Run(a.ctx, schedule.Every(2*time.Second), func(ctx context.Context, l *pglock.Lease) error {
		tick, _ := schedule.TickFromContext(ctx)
		return pgx.BeginFunc(ctx, a.Node, func(tx pgx.Tx) error {
			if err := l.Guard(ctx, tx); err != nil {
				return err
			}
			a.stage.ticks.Update(tx, tick.String(), func(n int) int { return n + 1 })
			return nil
		})
	})
}
