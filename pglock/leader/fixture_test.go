package leader_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/internal/locktest"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/internal/schema"
	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/leader"
)

// fixture is a schema for one test. Its clients have the rights of migrations.WithUser and no others.
type fixture struct {
	t      *testing.T
	admin  *pgxpool.Pool
	pool   *pgxpool.Pool // of a user
	schema string

	watcher *pglock.Client
}

func newFixture(t *testing.T) fixture {
	t.Helper()
	admin := pgtest.Pool(t)
	name := pgtest.Schema(t, admin)
	f := fixture{t: t, admin: admin, pool: pgtest.UserPool(t, admin, name), schema: name}
	f.watcher = f.client()
	return f
}

func (f fixture) client(opts ...pglock.Option) *pglock.Client {
	f.t.Helper()
	return locktest.ClientOn(f.t, f.pool, append([]pglock.Option{pglock.WithSchema(f.schema), pglock.WithLogger(nil)}, opts...)...)
}

// candidate returns a candidate of that name in the election "e", in a process of its own.
func (f fixture) candidate(name string, opts ...leader.Option) *leader.Election {
	f.t.Helper()
	return f.on(f.client(), append([]leader.Option{leader.WithLease(pglock.WithHolder(name))}, opts...)...)
}

func (f fixture) on(c *pglock.Client, opts ...leader.Option) *leader.Election {
	f.t.Helper()
	e, err := leader.New(c, "e", append([]leader.Option{leader.WithLogger(nil)}, opts...)...)
	ok(f.t, err)
	return e
}

func (f fixture) sql(statement string, args ...any) {
	f.t.Helper()
	locktest.Exec(f.t, f.admin, schema.Render(statement, f.schema), args...)
}

// expire ends the lease of the leader, as if it had not been renewed.
func (f fixture) expire() {
	f.t.Helper()
	f.sql("UPDATE pglock.distributed_locks SET expires_at = clock_timestamp() WHERE holder IS NOT NULL AND name = 'e'")
}

// elect makes a candidate lead.
func elect(t *testing.T, e *leader.Election, payload string) *leader.Term {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), pgtest.Patience)
	defer cancel()
	term, err := e.Campaign(ctx, payload)
	if err != nil {
		t.Fatalf("Campaign: %v", err)
	}
	return term
}

func resign(t *testing.T, term *leader.Term) {
	t.Helper()
	if err := term.Resign(t.Context()); err != nil {
		t.Errorf("Resign: %v", err)
	}
}

// waiters returns the names of the candidates in the queue.
func (f fixture) waiters(ctx context.Context) (all []string, err error) {
	k, err := f.watcher.Get(ctx, "e")
	for _, w := range k.Waiters {
		all = append(all, w.Holder)
	}
	return all, err
}

// campaigning starts a campaign, and returns when the candidate of that name is in the queue.
func (f fixture) campaigning(ctx context.Context, e *leader.Election, name string) <-chan *leader.Term {
	f.t.Helper()
	elected := make(chan *leader.Term, 1)
	go func() {
		t, err := e.Campaign(ctx, name)
		if err != nil && ctx.Err() == nil {
			f.t.Errorf("Campaign of %s: %v", name, err)
		}
		elected <- t
	}()
	pgtest.Eventually(f.t, name+" waits", func() bool {
		all, err := f.waiters(f.t.Context())
		return err != nil || slices.Contains(all, name)
	})
	return elected
}

// observer is a running Observe.
type observer struct {
	t    *testing.T
	next func() (leader.Leader, error, bool)
}

func (f fixture) observe(ctx context.Context, e *leader.Election) observer {
	f.t.Helper()
	next, stop := iter.Pull2(e.Observe(ctx))
	f.t.Cleanup(stop)
	return observer{f.t, next}
}

// payload waits for a leader, and returns its payload. It skips states without a leader.
func (o observer) payload() string {
	for {
		l, err, ok := o.next()
		if err != nil || !ok {
			return fmt.Sprint("no leader: ", err)
		}
		if l.Elected() {
			return l.Payload
		}
	}
}

// sees waits for a leader, which must have that payload.
func (o observer) sees(payload string) {
	o.t.Helper()
	if got := o.payload(); got != payload {
		o.t.Errorf("observed %q, want the payload %q", got, payload)
	}
}

// run starts Run. stop ends it and returns its error.
func run(t *testing.T, e *leader.Election, fn leader.Func) (stop func() error) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- e.Run(ctx, fn) }()
	stop = sync.OnceValue(func() error {
		cancel()
		select {
		case err := <-done:
			return err
		case <-time.After(pgtest.Patience):
			return errors.New("Run does not end")
		}
	})
	t.Cleanup(func() {
		if err := stop(); err != nil && !errors.Is(err, context.Canceled) {
			t.Errorf("Run: %v", err)
		}
	})
	return stop
}

var ok = locktest.OK
