package pglocktest

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/fencing"
	"github.com/pglock/pglock-go/internal/schema"
	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/internal/backend"
	"github.com/pglock/pglock-go/pglock/internal/memory"
)

// patience is how long a test waits for what must come.
const patience = 30 * time.Second

// Locks are the locks of a test, with a client of them. Further clients are as other processes. Its
// methods end the test if they fail, so the test's own goroutine has to call them.
type Locks struct {
	*pglock.Client
	tb    testing.TB
	place place
	recorder
}

// place is where the locks are.
type place interface {
	open(ctx context.Context, tb testing.TB, opts []pglock.Option) (*pglock.Client, error)
	begin(ctx context.Context) (pgx.Tx, error)

	// expire ends the grants of a name, or that with the token if it is not 0, as if their time were over.
	expire(ctx context.Context, name string, token fencing.Token) error
	advance(ctx context.Context, d time.Duration) error
	setDown(down bool)
}

// New returns locks in a schema of the pool's database, which no other test has at the same time, in this
// process or another one. With a nil pool the database is that of PGLOCK_TEST_DATABASE_URL. The role needs the
// right to create schemas. They are called pglocktest_1, pglocktest_2 and so on, and stay for later tests,
// because making the tables takes a third of a second. A test finds them empty, and leaves its rows behind.
//
// The client has the options, and its DoTx and WithConn use a pool of its own with the configuration of the
// pool.
//
// When the test ends, it fails for each lease that its clients still have, and for each call that still
// waits.
func New(tb testing.TB, pool *pgxpool.Pool, opts ...pglock.Option) *Locks {
	tb.Helper()
	d, err := newDatabase(tb, pool)
	if err != nil {
		tb.Fatalf("pglocktest: %v", err)
	}
	return newLocks(tb, d, opts)
}

// Fake returns locks in memory, for tests without a database. The client is that of package pglock, with its
// queues, renewals, deadlines and hand-offs, on a table in memory, so time-outs, losses and their errors
// are the real ones. In a bubble of testing/synctest they take no time.
//
// Lease.Guard and Bind need a transaction of [Locks.Begin], and refuse any other one. What needs
// SQL (DoTx, WithConn, Locks, Snapshot, and once.Tx) fails with an error that says so.
//
// The end of the test is that of New.
func Fake(tb testing.TB, opts ...pglock.Option) *Locks {
	tb.Helper()
	return newLocks(tb, inMemory{memory.NewServer()}, opts)
}

func newLocks(tb testing.TB, p place, opts []pglock.Option) *Locks {
	tb.Helper()
	k := &Locks{tb: tb, place: p}
	k.Client = k.Open(opts...)
	return k
}

// Open opens another client of the locks, as another process would. It is closed at the end of the test.
func (k *Locks) Open(opts ...pglock.Option) *pglock.Client {
	k.tb.Helper()
	client, calls := k.open(opts)
	k.tb.Cleanup(func() {
		for _, leak := range calls.leaks() {
			k.tb.Errorf("pglocktest: %s at the end of the test", leak)
		}
		k.close(client)
	})
	return client
}

// Begin begins a transaction, which the program under test guards and passes to its own tables. It
// has the signature of a pool's method, so pgx.BeginFunc takes Locks.
//
// With New the transaction is one on the pool of the test. That of a Fake has no tables: it knows
// the grants and marks of package fencing, and its other statements fail. Where a server would keep
// a guarded grant until the transaction ends, its Commit fails with fencing.ErrStale if the grant
// has ended meanwhile. So writes in memory must count only after a Commit that succeeds.
func (k *Locks) Begin(ctx context.Context) (pgx.Tx, error) { return k.place.begin(ctx) }

func (k *Locks) open(opts []pglock.Option) (*pglock.Client, *calls) {
	k.tb.Helper()
	calls := newCalls()
	opts = append([]pglock.Option{pglock.WithObserver(calls.hooks()), pglock.WithObserver(k.hooks()), pglock.WithLogger(nil)}, opts...)
	client, err := k.place.open(k.tb.Context(), k.tb, opts)
	if err != nil {
		k.tb.Fatalf("pglocktest: %v", err)
	}
	return client, calls
}

func (k *Locks) close(client *pglock.Client) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := client.Close(ctx); err != nil && !errors.Is(err, pglock.ErrLost) && !errors.Is(err, pglock.ErrUnavailable) {
		k.tb.Errorf("pglocktest: close: %v", err)
	}
}

// inMemory is a place in memory.
type inMemory struct{ server *memory.Server }

func (m inMemory) open(ctx context.Context, _ testing.TB, opts []pglock.Option) (*pglock.Client, error) {
	client, err := backend.Inside.Open(ctx, func(life context.Context) backend.Store { return m.server.Connect(life) },
		append(opts, pglock.WithSchema(schema.Default)))
	if err != nil {
		return nil, err
	}
	return client.(*pglock.Client), nil
}

func (m inMemory) begin(ctx context.Context) (pgx.Tx, error) {
	return m.server.Connect(context.Background()).Begin(ctx)
}

func (m inMemory) expire(_ context.Context, name string, token fencing.Token) error {
	m.server.Expire(name, token)
	return nil
}

func (m inMemory) advance(_ context.Context, d time.Duration) error {
	m.server.Advance(d)
	return nil
}

func (m inMemory) setDown(down bool) { m.server.SetDown(down) }
