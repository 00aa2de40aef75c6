package pglock_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"pgregory.net/rapid"

	"github.com/pglock/pglock-go/fencing"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/pglock"
)

// Flags on the command line take precedence.
func init() {
	checks := "8"
	if os.Getenv("PGLOCK_CHAOS") != "" {
		checks = "300"
	}
	for name, value := range map[string]string{"rapid.checks": checks, "rapid.nofailfile": "true", "rapid.shrinktime": "10s"} {
		if err := flag.Set(name, value); err != nil {
			panic(err)
		}
	}
}

// inFull undoes -short, with which rapid makes so few sequences that they show nothing and miss seeded bugs. No
// other test asks for it.
var inFull = sync.OnceFunc(func() { _ = flag.Set("test.short", "false") })

// lifecycle runs random calls of three clients on one lock, beside a model of it: the token of the
// last grant, and whether that grant is live. The model in internal/store has transactions and row
// locks instead, and no clients.
type lifecycle struct {
	f       fixture
	clients []*pglock.Client
	name    string

	last    fencing.Token
	live    bool
	revoked map[fencing.Token]bool
	leases  []*modelLease // all that were granted or adopted, the last 8
	steps   *int

	extensions int
}

// modelLease is a lease, and whether a call has ended it in its process.
type modelLease struct {
	*pglock.Lease
	ended bool
}

// usable reports whether the calls on l succeed.
func (m *lifecycle) usable(l *modelLease) bool { return !l.ended && m.current(l) }

func (m *lifecycle) current(l *modelLease) bool { return m.live && l.Token() == m.last }

var lifecycleOptions = []pglock.LeaseOption{pglock.WithTTL(10 * time.Minute), pglock.WithRenewEvery(0)}

// granted checks a new grant.
func (m *lifecycle) granted(rt *rapid.T, l *pglock.Lease, err error) {
	if err != nil {
		rt.Fatalf("no grant of a free lock: %v", err)
	}
	if l.Token() <= m.last {
		rt.Fatalf("token %d comes after %d", l.Token(), m.last)
	}
	m.last, m.live = l.Token(), true
	m.remember(l)
}

func (m *lifecycle) remember(l *pglock.Lease) {
	m.leases = append(m.leases, &modelLease{Lease: l})
	m.leases = m.leases[max(0, len(m.leases)-8):]
}

func (m *lifecycle) client(rt *rapid.T) *pglock.Client {
	return m.clients[rapid.IntRange(0, len(m.clients)-1).Draw(rt, "client")]
}

// lease returns one of the leases. Without one, the step is skipped.
func (m *lifecycle) lease(rt *rapid.T) *modelLease {
	if len(m.leases) == 0 {
		rt.Skip("no lease")
	}
	return m.leases[len(m.leases)-1-rapid.IntRange(0, len(m.leases)-1).Draw(rt, "age of the lease")]
}

func (m *lifecycle) try(rt *rapid.T) {
	c := m.client(rt)
	l, err := c.TryAcquire(m.f.t.Context(), m.name, lifecycleOptions...)
	var busy *pglock.BusyError
	switch {
	case !m.live:
		// A late statement about an earlier grant may look at the row, which is busy for that moment.
		for range 100 {
			if !errors.As(err, &busy) || busy.Holder != "" {
				break
			}
			rest(m.f.t, 10*time.Millisecond)
			l, err = c.TryAcquire(m.f.t.Context(), m.name, lifecycleOptions...)
		}
		m.granted(rt, l, err)
	case !errors.As(err, &busy) || busy.Token != m.last:
		rt.Fatalf("a try while grant %d is live: %v", m.last, err)
	}
}

// wait acquires the lock. If it is held, a release or a revocation ends the wait.
func (m *lifecycle) wait(rt *rapid.T) {
	c, ctx := m.client(rt), m.f.t.Context()
	if !m.live {
		l, err := c.Acquire(ctx, m.name, lifecycleOptions...)
		m.granted(rt, l, err)
		return
	}
	var holder *modelLease
	for _, l := range m.leases {
		if m.usable(l) {
			holder = l
		}
	}
	revoke := rapid.Bool().Draw(rt, "revoke")
	type result struct {
		l   *pglock.Lease
		err error
	}
	got := make(chan result, 1)
	go func() {
		l, err := c.Acquire(ctx, m.name, append(lifecycleOptions, pglock.WithWait(time.Minute))...)
		got <- result{l, err}
	}()
	pgtest.Eventually(m.f.t, "the caller waits", func() bool { return pglock.HeadWaits(c, m.name) })
	var err error
	if holder == nil || revoke {
		err = c.Revoke(ctx, m.name, m.last, "for the waiter")
		m.revoked[m.last] = true
	} else {
		err = holder.Release(ctx)
		holder.ended = true
	}
	r := <-got
	if err != nil {
		rt.Fatalf("the end of the grant before: %v", err)
	}
	m.granted(rt, r.l, r.err)
}

// extend extends a lease, each time by more, so that the client can't answer by itself.
func (m *lifecycle) extend(rt *rapid.T) {
	l := m.lease(rt)
	m.extensions++
	if err := l.Extend(m.f.t.Context(), 10*time.Minute+time.Duration(m.extensions)*time.Minute); (err == nil) != m.usable(l) {
		rt.Fatalf("extend %d: %v", l.Token(), err)
	}
}

func (m *lifecycle) release(rt *rapid.T) {
	l := m.lease(rt)
	err := l.Release(m.f.t.Context())
	if m.usable(l) {
		m.live = false
		if err != nil {
			rt.Fatalf("release %d: %v", l.Token(), err)
		}
	}
	l.ended = true
}

// revoke ends a grant, perhaps one that is over.
func (m *lifecycle) revoke(rt *rapid.T) {
	l := m.lease(rt)
	err := m.client(rt).Revoke(m.f.t.Context(), m.name, l.Token(), "reason")
	var stale *fencing.StaleError
	switch {
	case m.current(l) && err != nil:
		rt.Fatalf("revoke %d: %v", l.Token(), err)
	case l.Token() == m.last && err == nil: // perhaps it has expired
		m.live, m.revoked[m.last] = false, true
	case l.Token() < m.last && !m.revoked[l.Token()] && !errors.As(err, &stale):
		rt.Fatalf("revoke %d, after grant %d: %v", l.Token(), m.last, err)
	}
}

// expire lets the grant expire by the server's clock. The next grant is a takeover.
func (m *lifecycle) expire(rt *rapid.T) {
	if !m.live {
		rt.Skip("not held")
	}
	m.f.sql("UPDATE pglock.distributed_locks SET expires_at = clock_timestamp() WHERE name = $1", m.name)
	m.live = false
}

func (m *lifecycle) guard(rt *rapid.T) {
	l, ctx := m.lease(rt), m.f.t.Context()
	err := pgx.BeginFunc(ctx, m.f.pool, func(tx pgx.Tx) error { return l.Guard(ctx, tx) })
	switch {
	case (err == nil) != m.usable(l):
		rt.Fatalf("guard %d: %v", l.Token(), err)
	case err != nil && !errors.Is(err, fencing.ErrStale) && !errors.Is(err, pglock.ErrLost) && !errors.Is(err, pglock.ErrReleased):
		rt.Fatalf("guard %d: %v is of no known kind", l.Token(), err)
	}
}

// handOver hands a lease over, and adopts the grant.
func (m *lifecycle) handOver(rt *rapid.T) {
	l := m.lease(rt)
	usable, current := m.usable(l), m.current(l)
	fence, err := l.HandOver()
	l.ended = true
	if err != nil {
		if usable {
			rt.Fatalf("hand over %d: %v", l.Token(), err)
		}
		return
	}
	adopted, err := m.client(rt).Adopt(m.f.t.Context(), fence, lifecycleOptions...)
	switch {
	case !current && !errors.Is(err, fencing.ErrStale):
		rt.Fatalf("adopt %d, which is over: %v", fence.Token, err)
	case !current:
	case err != nil || adopted.Token() != fence.Token:
		rt.Fatalf("adopt %d: %v", fence.Token, err)
	default:
		m.remember(adopted)
	}
}

// compare compares the row with the model, and the leases with each other.
func (m *lifecycle) compare(rt *rapid.T) {
	*m.steps++
	got := value[string](m.f, `SELECT coalesce((SELECT format('%s %s', l.token, l.holder IS NOT NULL AND l.expires_at > clock_timestamp())
		FROM pglock.distributed_locks AS l WHERE l.name = $1), '0 f')`, m.name)
	if want := fmt.Sprintf("%d %.1s", m.last, fmt.Sprint(m.live)); got != want {
		rt.Fatalf("the row has %q, the model %q", got, want)
	}
	for _, l := range m.leases {
		if m.usable(l) && l.Err() != nil {
			rt.Fatalf("the lease of the live grant %d has ended: %v", l.Token(), l.Err())
		}
	}
}

// checkLifecycle runs random sequences of steps. It returns the number of steps.
func checkLifecycle(t *testing.T, tb rapid.TB, f fixture) (steps int) {
	t.Helper()
	inFull()
	var clients []*pglock.Client
	for range 3 {
		c := f.openUnclosed(pglock.WithLogger(nil))
		t.Cleanup(func() {
			ctx, cancel := context.WithTimeout(context.Background(), pgtest.Patience)
			defer cancel()
			_ = c.Close(ctx) // some leases were lost
		})
		clients = append(clients, c)
	}
	sequences := 0
	rapid.Check(tb, func(rt *rapid.T) {
		sequences++
		m := &lifecycle{f: f, clients: clients, name: fmt.Sprintf("n%d", sequences), revoked: map[fencing.Token]bool{}, steps: &steps}
		rt.Repeat(map[string]func(*rapid.T){
			"try": m.try, "acquire": m.wait, "extend": m.extend, "release": m.release, "revoke": m.revoke, "expire": m.expire,
			"guard": m.guard, "hand over": m.handOver, "": m.compare,
		})
	})
	t.Logf("%d sequences, %d steps", sequences, steps)
	return steps
}

// TestLifecycle checks random calls of three clients on one lock against the model. A failure shows
// the shortest sequence that fails, and its seed for -rapid.seed.
func TestLifecycle(t *testing.T) {
	t.Parallel()
	if steps := checkLifecycle(t, t, newFixture(t)); steps < 20 {
		t.Errorf("only %d steps", steps)
	}
}

// TestLifecycleFindsSeededBugs is the control: each of these bugs in the database is found.
func TestLifecycleFindsSeededBugs(t *testing.T) {
	t.Parallel()
	for name, bug := range map[string]string{
		"a takeover repeats the token":   "IF NEW.token > OLD.token AND OLD.holder IS NOT NULL THEN NEW.token := OLD.token; END IF",
		"a renewal ends the grant":       "IF NEW.token = OLD.token AND OLD.holder = NEW.holder AND OLD.expires_at <> NEW.expires_at AND NEW.expires_at > clock_timestamp() THEN NEW.expires_at := clock_timestamp(); END IF",
		"a grant is one of an older row": "IF NEW.token > OLD.token THEN NEW.token := OLD.token - 1; END IF",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			f.sql("CREATE FUNCTION pglock.seeded() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN " + bug + "; RETURN NEW; END $$")
			f.sql("CREATE TRIGGER seeded BEFORE UPDATE ON pglock.distributed_locks FOR EACH ROW EXECUTE FUNCTION pglock.seeded()")
			record := &recordTB{name: t.Name()}
			done := make(chan struct{})
			go func() { // rapid ends it after a failure
				defer close(done)
				checkLifecycle(t, record, f)
			}()
			<-done
			if !record.Failed() {
				t.Fatal("not found")
			}
			t.Logf("found: %s", record.text())
		})
	}
}

// recordTB records a failure of rapid.Check.
type recordTB struct {
	rapid.TB
	name string

	mu     sync.Mutex // guards the fields below
	failed bool
	lines  []string
}

func (r *recordTB) add(failed bool, text string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failed = r.failed || failed
	r.lines = append(r.lines, text)
}

func (r *recordTB) text() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return strings.Join(r.lines, "\n")
}

func (*recordTB) Helper()                             {}
func (r *recordTB) Name() string                      { return r.name }
func (r *recordTB) Log(args ...any)                   { r.add(false, fmt.Sprint(args...)) }
func (r *recordTB) Logf(format string, args ...any)   { r.add(false, fmt.Sprintf(format, args...)) }
func (r *recordTB) Error(args ...any)                 { r.add(true, fmt.Sprint(args...)) }
func (r *recordTB) Errorf(format string, args ...any) { r.add(true, fmt.Sprintf(format, args...)) }
func (r *recordTB) Fail()                             { r.add(true, "fail") }
func (r *recordTB) FailNow()                          { r.add(true, "fail now"); runtime.Goexit() }
func (r *recordTB) Fatal(args ...any)                 { r.Error(args...); runtime.Goexit() }
func (r *recordTB) Fatalf(format string, args ...any) { r.Errorf(format, args...); runtime.Goexit() }

func (r *recordTB) Failed() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.failed
}
