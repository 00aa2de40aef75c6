package sim

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglock/pglock-go/fencing"
	"github.com/pglock/pglock-go/internal/schema"
	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/internal/link"
	"github.com/pglock/pglock-go/pglock/leader"
	"github.com/pglock/pglock-go/pglock/once"
	"github.com/pglock/pglock-go/pglock/schedule"
)

// stage is what the processes of a workload share.
type stage struct {
	w        *World
	name     string // of the only lock, in a quiet world
	pace     time.Duration
	balances *Table[int]
	effects  *Table[int] // of idempotency keys
	ticks    *Table[int] // of a schedule: runs that were committed

	mu     sync.Mutex
	handed []fencing.Fence
	terms  []fencing.Token
	nests  map[*actor]*nest
}

// nest is a call that holds the first name and waits for the second one.
type nest struct {
	node          *Node
	first, second string
	since         time.Time
	ended         time.Time
	told          bool
}

// actor is a process of the workload.
type actor struct {
	*Node
	stage *stage
	*rand.Rand
	ctx  context.Context
	hold time.Duration // the shortest one of the next lease
}

// everything starts processes that do all that a client can do. Worlds differ: many processes do all
// sorts of things, a crowd hurries for a few names, or two processes have one name for themselves,
// where no other event hides that one was missed.
func everything(w *World) {
	s := &stage{w: w, balances: NewTable[int](w), effects: NewTable[int](w), ticks: NewTable[int](w), nests: map[*actor]*nest{}}
	w.judge.ticks = append(w.judge.ticks, s.findCycles)
	switch w.plan.seed % 4 {
	case 0, 1:
		s.name = []string{"lock 0", "lock 0", "semaphore", "readers"}[w.Random(4)]
		s.pace = []time.Duration{500 * time.Millisecond, 5 * time.Second}[w.Random(2)]
		w.plan.rate *= 4 // of few messages
		w.judge.strict = true
		w.Go("quiet", 2+w.Random(2), s.quiet)
	case 2:
		w.judge.strict = true
		w.Go("hurried", 1+w.Random(3), s.hurry)
	default:
		w.Go("worker", 6, s.work)
	}
}

// quiet is the work of a process that has long leases, and that only one call of it waits for.
func (s *stage) quiet(ctx context.Context, p *Node) {
	a := &actor{p, s, rand.New(rand.NewPCG(s.w.plan.seed, uint64(p.id)+1000)), ctx, 0}
	for ctx.Err() == nil {
		l := a.Lock(s.name)
		switch s.name {
		case "semaphore":
			l = a.Semaphore(s.name, 3).Weight(1 + a.IntN(3))
		case "readers":
			l = pick(a.Rand, a.Reader(s.name), a.Writer(s.name))
		}
		options := []pglock.LeaseOption{pglock.WithTTL(pick(a.Rand, time.Second, 20*time.Second, time.Minute))}
		renewed := a.IntN(3) > 0
		if !renewed {
			options = append(options, pglock.WithRenewEvery(0))
		}
		if lease, err := a.acquire(l, pick(a.Rand, time.Hour, time.Hour, 3*time.Second), options...); err == nil {
			hold := between(a.Rand, 0, s.pace)
			switch n := a.IntN(3); {
			case !renewed: // it uses its time, and ends before its deadline
				hold = min(max(hold, time.Second), time.Until(lease.Deadline())*9/10)
			case n == 0:
				a.write(lease)
			case n == 1:
				lease = a.upgrade(lease)
			}
			Sleep(lease.Context(), hold)
			if ctx.Err() != nil && a.IntN(2) == 0 {
				return // Close releases it
			}
			_ = lease.Release(ctx)
		}
		Sleep(ctx, between(a.Rand, 0, s.pace))
	}
}

// hurry is the work of a process with several callers that wait for the same names, some of them not
// for long: a lock is handed off, or its next caller has just left.
func (s *stage) hurry(ctx context.Context, p *Node) {
	r := rand.New(rand.NewPCG(s.w.plan.seed, uint64(p.id)+1000))
	long, scale := pick(r, 2*time.Second, 20*time.Second), pick(r, time.Millisecond, 5*time.Millisecond, 50*time.Millisecond)
	var tasks sync.WaitGroup
	for range 1 + r.IntN(4) {
		a := &actor{p, s, rand.New(rand.NewPCG(r.Uint64(), 1)), ctx, 0}
		tasks.Go(func() {
			for ctx.Err() == nil {
				for i := a.IntN(20); i > 0 && ctx.Err() == nil; i-- {
					a.hurry(pick(a.Rand, "lock 0", "lock 0", "lock 1", a.order()), scale, pglock.WithTTL(pick(a.Rand, time.Second, long)))
				}
				Sleep(ctx, between(a.Rand, 0, 5*time.Second))
			}
		})
	}
	tasks.Wait()
}

// hurry acquires a lock for a short time.
func (a *actor) hurry(name string, scale time.Duration, ttl pglock.LeaseOption) {
	var lease *pglock.Lease
	var err error
	if l := a.Lock(name); a.IntN(8) == 0 {
		time.Sleep(scale - a.stage.w.Now()%scale + time.Duration(a.IntN(1000))) // several at once, in an order that repeats
		lease, err = l.TryAcquire(a.ctx, ttl)
	} else {
		lease, err = a.acquire(l, pick(a.Rand, time.Hour, 20*scale, 2*scale, between(a.Rand, 0, scale)), ttl)
	}
	if err == nil {
		Sleep(lease.Context(), between(a.Rand, 0, scale))
		_ = lease.Release(a.ctx)
	}
	Sleep(a.ctx, between(a.Rand, 0, scale))
}

// acquire calls Acquire with a context of that time, and judges that it keeps to it.
func (a *actor) acquire(l pglock.Lock, d time.Duration, options ...pglock.LeaseOption) (*pglock.Lease, error) {
	ctx, cancel := context.WithTimeout(a.ctx, d)
	defer cancel()
	ctx, end := a.Waiting(ctx, l.Name())
	defer end()
	began := time.Now()
	lease, err := l.Acquire(ctx, options...)
	if took := time.Since(began); took > d+2*time.Second {
		a.stage.w.Failf("I8: %s: an acquire of %v has taken %v, and its context %v", a.name, l, took, d)
	}
	return lease, err
}

func (s *stage) work(ctx context.Context, p *Node) {
	r := rand.New(rand.NewPCG(s.w.plan.seed, uint64(p.id)+1000))
	a := &actor{p, s, r, ctx, 0}
	var tasks sync.WaitGroup
	for range pick(r, 1, 1, 1, 2, 4) {
		seed := r.Uint64()
		tasks.Go(func() {
			b := *a
			b.Rand = rand.New(rand.NewPCG(seed, 1))
			for ctx.Err() == nil {
				b.step()
				Sleep(ctx, between(b.Rand, 0, 2*time.Second))
			}
		})
	}
	for _, task := range []func(*actor){(*actor).campaign, (*actor).serve, (*actor).serveRarely, (*actor).supersede} {
		if r.IntN(3) == 0 {
			b := *a
			b.Rand = rand.New(rand.NewPCG(r.Uint64(), 1))
			tasks.Go(func() { task(&b) })
		}
	}
	tasks.Wait()
}

func pick[T any](r *rand.Rand, of ...T) T { return of[r.IntN(len(of))] }

// ttl returns short times in most worlds, where few waits are long. In the others, a grant without
// an owner lives long enough to be noticed.
func (a *actor) ttl() pglock.LeaseOption {
	if a.stage.w.plan.seed%3 == 0 {
		return pglock.WithTTL(pick(a.Rand, time.Second, 20*time.Second))
	}
	return pglock.WithTTL(pick(a.Rand, 300*time.Millisecond, time.Second, 2*time.Second, 5*time.Second))
}

func (a *actor) options() (all []pglock.LeaseOption) {
	all, a.hold = append(all, a.ttl()), 0
	switch a.IntN(12) {
	case 0:
		all = append(all, pglock.WithBarging())
	case 1:
		a.hold = between(a.Rand, time.Millisecond, time.Second)
		all = append(all, pglock.WithMinHold(a.hold))
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
	if a.IntN(4) == 0 {
		return a.Lock(a.order())
	}
	return a.Lock(fmt.Sprint("lock ", a.IntN(3)))
}

// order returns a name that is new to everybody in each second.
func (a *actor) order() string { return fmt.Sprint("order ", a.stage.w.Now()/time.Second) }

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
	case 5:
		a.obey()
	default:
		d := time.Hour
		if a.IntN(4) == 0 {
			d = between(a.Rand, 0, 4*time.Second)
		}
		lease, err := a.acquire(l, d, a.options()...)
		a.use(lease, err)
	}
}

// obey holds a lock for long, without renewals, until it is asked to release it
func (a *actor) obey() {
	lease, err := a.TryAcquire(a.ctx, "obedient", pglock.WithTTL(20*time.Second), pglock.WithRenewEvery(0))
	if err != nil {
		return
	}
	select {
	case <-lease.ReleaseRequested():
	case <-time.After(15 * time.Second): // before its end
	case <-lease.Done():
	case <-a.ctx.Done():
	}
	_ = lease.Release(a.ctx)
}

// use does what one does under a lease, and then ends it in one of the ways.
func (a *actor) use(l *pglock.Lease, err error) {
	if err != nil {
		return
	}
	for range a.IntN(3) {
		Sleep(l.Context(), between(a.Rand, 0, time.Second))
		switch a.IntN(6) {
		case 0:
			_ = l.Extend(a.ctx, between(a.Rand, time.Second, 5*time.Second))
		case 1:
			_ = l.Downgrade(a.ctx)
		case 2:
			l = a.upgrade(l)
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
	if j := &a.stage.w.judge; a.hold > 0 && len(l.Names()) == 1 {
		a.stage.w.mu.Lock()
		j.holds[l.Token()] = a.hold
		a.stage.w.mu.Unlock()
	}
	_ = l.Release(a.ctx)
}

// upgrade returns the lease that it leaves: if the answer was lost, the reader's must not be trusted. Of a
// statement that arrives again after its answer, which TCP does not do, no client can know.
func (a *actor) upgrade(l *pglock.Lease) *pglock.Lease {
	up, err := l.TryUpgrade(a.ctx)
	if err == nil {
		return up
	}
	a.stage.w.mu.Lock()
	defer a.stage.w.mu.Unlock()
	j, t := &a.stage.w.judge, l.Token()
	writer := j.grants[l.Name()][j.upgraded[t]]
	if time.Now().Before(l.Deadline()) && l.Err() == nil && writer != nil && !writer.ownerless && !j.live(l.Name(), t) {
		a.stage.w.failf("I3: %s trusts its lease of %q, token %d, whose grant an upgrade has ended: %v", a.name, l.Name(), t, err)
	}
	return l
}

// losses returns how many failovers have lost what was committed.
func (s *stage) losses() int {
	s.w.mu.Lock()
	defer s.w.mu.Unlock()
	return s.w.losses
}

// excused reports whether the plan has ended a grant, whose answer may still be on its way.
func (s *stage) excused(t fencing.Token) bool {
	s.w.mu.Lock()
	defer s.w.mu.Unlock()
	return s.w.judge.excused[t]
}

// write adds 1 to a balance that it has read before.
func (a *actor) write(l *pglock.Lease) {
	if names := l.Names(); len(names) > 1 || names[0] == "semaphore" || names[0] == "readers" {
		return
	}
	losses, seen := a.stage.losses(), a.stage.balances.Get(l.Name())
	Sleep(a.ctx, between(a.Rand, 0, 500*time.Millisecond)) // it does not look at its lease
	applied, refused := false, false                       // guarded by the world's mu
	err := pgx.BeginFunc(a.ctx, a.Node, func(tx pgx.Tx) error {
		if err := l.Guard(a.ctx, tx); err != nil {
			return err
		}
		Sleep(a.ctx, between(a.Rand, 0, 300*time.Millisecond))
		a.stage.balances.Update(tx, l.Name(), func(balance int) int {
			if applied = true; refused {
				a.stage.w.failf("commit: %s, token %d, writes to %q after an error that says that it does not", a.name, l.Token(), l.Name())
			}
			if balance != seen && losses == a.stage.w.losses { // else it may have read what a failover has lost
				a.stage.w.failf("I4: %s, token %d, writes to %q what it has computed of %d, and finds %d", a.name, l.Token(), l.Name(), seen, balance)
			}
			return seen + 1
		})
		return nil
	})
	a.stage.w.mu.Lock()
	defer a.stage.w.mu.Unlock()
	refused = err != nil && !link.MaybeApplied(err)
	if err == nil && !applied || refused && applied {
		a.stage.w.failf("commit: %s, token %d, has written to %q: %v, and its commit says: %v", a.name, l.Token(), l.Name(), applied, err)
	}
}

func (a *actor) nested() error {
	first, second := "nested 0", "nested 1"
	if a.IntN(2) == 0 {
		first, second = second, first
	}
	return a.Do(a.ctx, first, func(ctx context.Context, _ *pglock.Lease) error {
		Sleep(ctx, between(a.Rand, 0, 100*time.Millisecond))
		a.stage.wait(a, &nest{a.Node, first, second, time.Now(), time.Time{}, false})
		err := a.Do(ctx, second, func(ctx context.Context, _ *pglock.Lease) error {
			a.stage.wait(a, nil)
			Sleep(ctx, between(a.Rand, 0, 100*time.Millisecond))
			return nil
		}, a.ttl())
		a.stage.deadlock(a, second, err)
		a.stage.wait(a, nil)
		return err
	}, a.ttl())
}

// wait notes that a call waits, or does not any more.
func (s *stage) wait(a *actor, n *nest) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n != nil {
		s.nests[a] = n
	} else if n = s.nests[a]; n != nil && n.ended.IsZero() {
		n.ended = time.Now()
	}
}

// deadlock judges the error of a nested call: the other one of the cycle waits, or did lately.
func (s *stage) deadlock(a *actor, second string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !errors.Is(err, pglock.ErrDeadlock) {
		return
	}
	for _, n := range s.nests {
		if n.first == second && (n.ended.IsZero() || time.Since(n.ended) < 5*time.Second) {
			return
		}
	}
	s.w.Failf("deadlock: %s waits for %q, whose holder waits for nothing: %v", a.name, second, err)
}

// findCycles judges cycles that nobody finds. The caller holds the world's mu.
func (s *stage) findCycles() {
	s.mu.Lock()
	defer s.mu.Unlock()
	const bound = 3 * time.Second
	for _, m := range s.nests {
		for _, n := range s.nests {
			old := time.Since(m.since) > bound && time.Since(n.since) > bound && m.ended.IsZero() && n.ended.IsZero()
			if old && m.first == n.second && n.first == m.second && !m.told && s.w.judge.healthy(m.node) && s.w.judge.healthy(n.node) {
				m.told, n.told = true, true
				s.w.failf("deadlock: %s and %s have waited for each other for %v", m.node.name, n.node.name, bound)
			}
		}
	}
}

func (a *actor) adopt() {
	a.stage.mu.Lock()
	var f fencing.Fence
	if len(a.stage.handed) > 0 {
		f, a.stage.handed = a.stage.handed[0], a.stage.handed[1:]
	}
	a.stage.mu.Unlock()
	if a.hold = 0; f.Token != 0 {
		lease, err := a.Adopt(a.ctx, f, a.ttl())
		a.use(lease, err)
	}
}

func (a *actor) revokeSomebody() {
	name := pick(a.Rand, "lock 0", "lock 1", "lock 2", "semaphore", "readers", "obedient", "obedient")
	at, err := a.Get(a.ctx, name)
	if err != nil || !at.Held() {
		return
	}
	token := at.Token
	if len(at.Grants) > 0 {
		token = at.Grants[a.IntN(len(at.Grants))].Token
	}
	for range 1 + a.IntN(2) { // a repetition changes nothing
		if a.IntN(2) == 0 {
			_ = a.Revoke(a.ctx, name, token, "a test")
		} else {
			_ = a.RequestRelease(a.ctx, name, token, "a test")
		}
		Sleep(a.ctx, between(a.Rand, 0, time.Second))
	}
}

// runOnce has an effect that must happen once, beside the record of its key. A failover may lose the record of an
// attempt that goes on, so its effect counts only if none has lost anything since the attempt began.
func (a *actor) runOnce() {
	losses := a.stage.losses()
	key := fmt.Sprint("key ", int(a.stage.w.Now().Seconds())/10)
	_, err := once.Do(a.ctx, a.Client, key, nil, func(ctx context.Context, l *pglock.Lease) (int, error) {
		Sleep(ctx, between(a.Rand, 0, 500*time.Millisecond))
		err := pgx.BeginFunc(ctx, a.Node, func(tx pgx.Tx) error {
			if err := l.Guard(ctx, tx); err != nil {
				return err
			}
			a.stage.effects.Update(tx, key, func(n int) int {
				if n > 0 {
					a.stage.w.failf("once: the effect of %q happens again", key)
				}
				if losses != a.stage.w.losses {
					return n
				}
				return n + 1
			})
			return nil
		})
		return 1, err
	}, once.WithLease(a.ttl()))
	if err == nil && a.stage.effects.Get(key) == 0 && a.stage.losses() == 0 {
		a.stage.w.Failf("once: %s is told that %q is done, and its effect did not happen", a.name, key)
	}
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
			Sleep(a.ctx, 100*time.Millisecond)
			continue
		}
		excused := a.stage.excused(term.Lease().Token())
		a.stage.mu.Lock()
		if !excused && slices.ContainsFunc(a.stage.terms, func(t fencing.Token) bool { return t >= term.Lease().Token() }) {
			a.stage.w.Failf("leader: a term with the token %d after %v", term.Lease().Token(), a.stage.terms)
		}
		a.stage.terms = append(a.stage.terms, term.Lease().Token())
		a.stage.mu.Unlock()
		Sleep(term.Lease().Context(), between(a.Rand, 0, 3*time.Second))
		if t, leads := e.Term(); leads && t.Lease().Err() != nil {
			a.stage.w.Failf("leader: %s leads by a term that has ended: %v", a.name, t.Lease().Err())
		}
		_ = term.Resign(a.ctx)
		Sleep(a.ctx, between(a.Rand, 0, 3*time.Second))
	}
}

// supersede runs something now and then, as the newest, until a newer one comes or it is done.
func (a *actor) supersede() {
	for a.ctx.Err() == nil {
		_ = a.Do(a.ctx, "newest", func(ctx context.Context, l *pglock.Lease) error {
			Sleep(ctx, between(a.Rand, 0, 10*time.Second))
			a.write(l)
			return nil
		}, a.ttl(), pglock.WithSupersede())
		Sleep(a.ctx, between(a.Rand, 0, 5*time.Second))
	}
}

// serve runs a job every other second.
func (a *actor) serve() { a.run("job", 2*time.Second, func(*schedule.Job) {}) }

// serveRarely runs a job twice a minute, and now and then once more.
func (a *actor) serveRarely() {
	a.run("rare job", 30*time.Second, func(j *schedule.Job) {
		for a.ctx.Err() == nil {
			Sleep(a.ctx, between(a.Rand, 0, 40*time.Second))
			_, _ = j.Trigger(a.ctx, "")
		}
	})
}

// run runs a job, and repeats runs that fail.
func (a *actor) run(name string, period time.Duration, beside func(j *schedule.Job)) {
	j, err := schedule.New(a.Client, name, schedule.WithTTL(3*time.Second), schedule.WithRetry(2, 100*time.Millisecond), schedule.WithLogger(slog.New(slog.DiscardHandler)))
	if err != nil {
		a.stage.w.Failf("schedule: %v", err)
		return
	}
	failing := rand.New(rand.NewPCG(a.Uint64(), 1))
	var tasks sync.WaitGroup
	tasks.Go(func() { beside(j) })
	defer tasks.Wait()
	_ = j.Run(a.ctx, schedule.Every(period), func(ctx context.Context, l *pglock.Lease) error {
		tick, _ := schedule.TickFromContext(ctx)
		if failing.IntN(4) == 0 {
			return errors.New("a failure of the simulation")
		}
		return pgx.BeginFunc(ctx, a.Node, func(tx pgx.Tx) error {
			if err := l.Guard(ctx, tx); err != nil {
				return err
			}
			a.stage.ticks.Update(tx, name+tick.String(), func(n int) int {
				if mark := a.stage.w.server.Mark(schema.LastTick + name); mark >= fencing.Token(tick.UnixMicro()) {
					a.stage.w.failf("schedule: %s runs the tick %v again, which was recorded", a.name, tick)
				}
				return n + 1
			})
			return nil
		})
	})
}

// careless starts processes that write without a guard, whatever has become of their leases: the
// control of everything.
func careless(w *World) {
	balances := NewTable[int](w)
	w.Go("worker", 3, func(ctx context.Context, p *Node) {
		for ctx.Err() == nil {
			_ = p.Do(ctx, "lock", func(ctx context.Context, _ *pglock.Lease) error {
				seen := balances.Get("lock")
				ctx = context.WithoutCancel(ctx)
				Sleep(ctx, time.Duration(w.Random(int(time.Second))))
				return pgx.BeginFunc(ctx, p, func(tx pgx.Tx) error {
					balances.Update(tx, "lock", func(balance int) int {
						if balance != seen {
							w.failf("I4: %s writes what it has computed of %d, and finds %d", p.name, seen, balance)
						}
						return seen + 1
					})
					return nil
				})
			}, pglock.WithTTL(time.Second))
		}
	})
}
