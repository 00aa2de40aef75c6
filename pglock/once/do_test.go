package once_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/pglock/pglock-go/fencing"
	"github.com/pglock/pglock-go/internal/locktest"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/internal/schema"
	"github.com/pglock/pglock-go/migrations"
	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/once"
)

// pay is an fn whose effect is a row of effects, and whose result is the row's number. It returns
// err after the effect.
func (f fixture) pay(key string, err error) func(context.Context, *pglock.Lease) (int64, error) {
	return func(ctx context.Context, _ *pglock.Lease) (int64, error) {
		id, failure := f.effect(ctx, f.pool, key)
		return id, errors.Join(failure, err)
	}
}

// do runs the effect of a key.
func (f fixture) do(c *pglock.Client, key string, err error, opts ...once.DoOption) (int64, error) {
	return once.Do(f.t.Context(), c, key, []byte("request"), f.pay(key, err), opts...)
}

// state returns the state of a key, and "" if it has no record.
func (f fixture) state(key string) string {
	f.t.Helper()
	info, err := once.Get(f.t.Context(), f.pool, key, f.in)
	if errors.Is(err, once.ErrNotFound) {
		return ""
	}
	if err != nil {
		f.t.Error(err)
	}
	return info.State
}

// clients are kinds of clients, with settings of their sessions that must not matter.
var clients = map[string]func(f fixture, c *pgxpool.Config) *pglock.Client{
	"default": fixture.clientWith,
	"simple protocol": func(f fixture, c *pgxpool.Config) *pglock.Client {
		c.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeSimpleProtocol
		return f.clientWith(c)
	},
	"odd settings": func(f fixture, c *pgxpool.Config) *pglock.Client {
		c.ConnConfig.RuntimeParams["default_transaction_isolation"] = "serializable"
		c.ConnConfig.RuntimeParams["synchronous_commit"] = "off"
		c.ConnConfig.RuntimeParams["search_path"] = "nowhere"
		return f.clientWith(c)
	},
	"database/sql": func(f fixture, c *pgxpool.Config) *pglock.Client { // the record is written on its one connection
		db := stdlib.OpenDB(*c.ConnConfig)
		db.SetMaxOpenConns(1)
		client, err := pglock.OpenDB(f.t.Context(), db, pglock.WithSchema(f.schema))
		ok(f.t, err)
		f.t.Cleanup(func() {
			_ = client.Close(context.Background())
			if n := db.Stats().InUse; n > 0 {
				f.t.Errorf("%d connections are in use", n)
			}
			_ = db.Close()
		})
		return client
	},
}

// clientWith returns a client with a pool of its own.
func (f fixture) clientWith(config *pgxpool.Config) *pglock.Client {
	f.t.Helper()
	pool, err := pgxpool.NewWithConfig(f.t.Context(), config)
	ok(f.t, err)
	f.t.Cleanup(pool.Close)
	f.pool = pool
	return f.client()
}

// TestDoRunsOnce: the second call returns the first one's result without the lock.
func TestDoRunsOnce(t *testing.T) {
	t.Parallel()
	for name, client := range clients {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			a, b := client(f, f.pool.Config()), client(f, f.pool.Config())
			first, err := f.do(a, "k", nil)
			wantErr(t, "first", err)
			l, err := b.Acquire(t.Context(), once.LockName("k"))
			wantErr(t, "somebody holds the lock", err)
			again, err := f.do(b, "k", nil)
			wantErr(t, "again", err)
			_, err = once.Do(t.Context(), b, "k", []byte("another request"), f.pay("k", nil))
			wantErr(t, "another request", err, once.ErrMismatch)
			wantErr(t, "release", l.Release(t.Context()))
			tx := f.begin("")
			inTx, err := f.call(tx, "k")
			wantErr(t, "in a transaction", err)
			if again != first || inTx != first || f.effects("k") != 1 || f.state("k") != "done" {
				t.Errorf("%d, %d and %d, with %d effects, state %q", first, again, inTx, f.effects("k"), f.state("k"))
			}
		})
	}
}

// TestDoOutcomes: what fn returns decides what is recorded, and what the next call returns. A rule
// decides about an attempt with an unknown outcome: its lookup is asked once, about that attempt.
func TestDoOutcomes(t *testing.T) { //nolint:tparallel // the subtests count the questions in one variable
	t.Parallel()
	f := newFixture(t)
	c := f.client()
	lost, offline := errors.New("lost"), errors.New("offline")
	asked := 0
	lookup := func(v int64, err error) once.DoOption {
		return once.WithLookup(func(_ context.Context, l *pglock.Lease, s once.Started) (int64, error) {
			asked++
			if s.Key == "" || s.Token == 0 || s.Token >= l.Token() || s.Holder == "" || s.StartedAt.IsZero() {
				t.Errorf("asked about %+v, as %v", s, l.Fence())
			}
			return v, err
		})
	}
	unknown := []error{once.ErrOutcomeUnknown, lost}
	for name, test := range map[string]struct {
		first error // of fn, in the first call
		wants []error
		state string // after it

		rule    once.DoOption
		then    error // of fn, in the next call
		answer  int64 // 0: that of fn
		want    []error
		next    string // the state after it
		effects int
	}{
		"result":   {nil, nil, "done", nil, nil, 0, nil, "done", 1},
		"failed":   {once.Failed(lost), []error{once.ErrFailed, lost}, "failed", nil, nil, 0, []error{once.ErrFailed}, "failed", 1},
		"not done": {once.NotDone(lost), []error{lost}, "", nil, nil, 0, nil, "done", 2},
		"no rule":  {lost, unknown, "started", nil, nil, 0, []error{once.ErrOutcomeUnknown}, "started", 1},

		"it happened":               {lost, unknown, "started", lookup(7, nil), nil, 7, nil, "done", 1},
		"it did not happen":         {lost, unknown, "started", lookup(0, once.NotDone(offline)), nil, 0, nil, "done", 2},
		"it failed":                 {lost, unknown, "started", lookup(0, once.Failed(offline)), nil, 0, []error{once.ErrFailed, offline}, "failed", 1},
		"nobody knows":              {lost, unknown, "started", lookup(0, offline), nil, 0, []error{once.ErrOutcomeUnknown, offline}, "started", 1},
		"retry":                     {lost, unknown, "started", once.WithRetry(), nil, 0, nil, "done", 2},
		"retry, and it is not done": {lost, unknown, "started", once.WithRetry(), once.NotDone(offline), 0, []error{once.ErrOutcomeUnknown, offline}, "started", 2},
		"not done, and asked":       {lost, unknown, "started", lookup(0, once.NotDone(lost)), once.NotDone(offline), 0, []error{offline}, "", 2},
	} {
		t.Run(name, func(t *testing.T) {
			asked = 0
			_, err := f.do(c, name, test.first)
			wantErr(t, "first", err, test.wants...)
			if s := f.state(name); s != test.state {
				t.Errorf("the state is %q, want %q", s, test.state)
			}
			opts := slices.DeleteFunc([]once.DoOption{test.rule}, func(o once.DoOption) bool { return o == nil })
			answer, err := f.do(c, name, test.then, opts...)
			wantErr(t, "next", err, test.want...)
			if s := f.state(name); s != test.next || f.effects(name) != test.effects {
				t.Errorf("the state is %q and there are %d effects, want %q and %d", s, f.effects(name), test.next, test.effects)
			}
			if test.next != "done" {
				return
			}
			again, err := f.do(c, name, nil, opts...)
			wantErr(t, "again", err)
			if again != answer || test.answer != 0 && answer != test.answer || asked > 1 {
				t.Errorf("%d, then %d, asked %d times", answer, again, asked)
			}
		})
	}
	var was *once.FailedError
	if _, err := f.do(c, "failed", nil); !errors.As(err, &was) || was.Text != "lost" || was.Key != "failed" {
		t.Errorf("the repeated failure: %+v", was)
	}
	// The class of an inner call's error says nothing about the outer effect.
	for name, class := range map[string]func(error) error{"not done": once.NotDone, "failed": once.Failed} {
		_, err := once.Do(t.Context(), c, "outer, "+name, nil, func(ctx context.Context, _ *pglock.Lease) (int, error) {
			_, err := once.Do(ctx, c, "inner, "+name, nil, func(context.Context, *pglock.Lease) (int, error) { return 0, class(lost) })
			return 0, err
		})
		wantErr(t, "an inner call", err, once.ErrOutcomeUnknown, lost)
		if class(nil) != nil {
			t.Error("a nil error has a class")
		}
	}
}

// TestDoInsideDo: fn can't run again inside itself, also if the client joins leases.
func TestDoInsideDo(t *testing.T) {
	t.Parallel()
	for name, opts := range map[string][]pglock.Option{"joins": {pglock.WithJoin()}, "does not join": nil} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			doInsideDo(t, opts)
		})
	}
}

// TestDoInsideDoElsewhere: the key in another database with the same schema is another key.
func TestDoInsideDoElsewhere(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	database := pgtest.PoolOn(t, pgtest.Database(t))
	ok(t, migrations.Up(t.Context(), database, migrations.WithSchema(f.schema)))
	for _, opts := range [][]pglock.Option{nil, {pglock.WithJoin()}} {
		elsewhere := locktest.ClientOn(t, database, append(opts, pglock.WithSchema(f.schema))...)
		key := fmt.Sprint("k", len(opts))
		inner := 0
		outer, err := once.Do(t.Context(), f.client(opts...), key, nil, func(ctx context.Context, _ *pglock.Lease) (n int, err error) {
			inner, err = once.Do(ctx, elsewhere, key, nil, func(context.Context, *pglock.Lease) (int, error) { return 2, nil })
			return 1, err
		})
		if err != nil || outer != 1 || inner != 2 {
			t.Errorf("outside %d, inside %d, %v", outer, inner, err)
		}
	}
}

func doInsideDo(t *testing.T, opts []pglock.Option) {
	t.Helper()
	f := newFixture(t)
	c := f.client(opts...)
	_, err := once.Do(t.Context(), c, "k", nil, func(ctx context.Context, l *pglock.Lease) (int64, error) {
		_, err := once.Do(ctx, c, "k", nil, func(context.Context, *pglock.Lease) (int64, error) {
			t.Error("fn runs twice")
			return 0, nil
		})
		wantErr(t, "inside", err, once.ErrInProgress)
		if _, err := once.Do(ctx, c, "another key", nil, f.pay("another key", nil)); err != nil {
			t.Errorf("control: another key: %v", err)
		}
		return f.pay("k", nil)(ctx, l)
	})
	wantErr(t, "outside", err)
}

// TestDoPanics: the outcome is unknown, the lock is free, and the panic goes on.
func TestDoPanics(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.client()
	func() {
		defer func() {
			if r := recover(); r != "boom" {
				t.Errorf("the panic became %v", r)
			}
		}()
		_, _ = once.Do(t.Context(), c, "k", nil, func(context.Context, *pglock.Lease) (int, error) { panic("boom") })
	}()
	_, err := once.Do(t.Context(), c, "k", nil, func(context.Context, *pglock.Lease) (int, error) { return 0, nil }, once.WithWait(time.Second))
	wantErr(t, "the next call", err, once.ErrOutcomeUnknown)
	i, err := once.Get(t.Context(), f.pool, "k", f.in)
	if err != nil || i.Key != "k" || i.State != "started" || i.Running || i.Token == 0 || !i.ExpiresAt.IsZero() {
		t.Errorf("%+v, %v", i, err)
	}
}

// TestDoResultThatCannotBeStored: the effect has happened, so each call says that, and the first one
// returns the result.
func TestDoResultThatCannotBeStored(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.client()
	large := func(context.Context, *pglock.Lease) ([]byte, error) { return make([]byte, once.MaxResult+1), nil }
	v, err := once.Do(t.Context(), c, "large", nil, large)
	wantErr(t, "too large", err, once.ErrNoResult, once.ErrResultTooLarge)
	if len(v) != once.MaxResult+1 {
		t.Errorf("the first caller got %d bytes", len(v))
	}
	v, err = once.Do(t.Context(), c, "large", nil, large, once.WithRetry())
	wantErr(t, "again", err, once.ErrNoResult)
	if v != nil {
		t.Errorf("the second caller got %d bytes", len(v))
	}
	nan := func(context.Context, *pglock.Lease) (float64, error) { return math.Inf(1), nil }
	_, err = once.Do(t.Context(), c, "inf", nil, nan)
	wantErr(t, "not JSON", err, once.ErrNoResult)
	if errors.Is(err, once.ErrResultTooLarge) || !strings.Contains(err.Error(), "Inf") {
		t.Errorf("not JSON: %v", err)
	}
	fits := func(context.Context, *pglock.Lease) ([]byte, error) { return make([]byte, once.MaxResult), nil }
	if v, err := once.Do(t.Context(), c, "fits", nil, fits); err != nil || len(v) != once.MaxResult {
		t.Errorf("control: %d bytes, %v", len(v), err)
	}
}

// TestDoInProgress: a call does not run fn while another one does. It waits, or says so.
func TestDoInProgress(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	a, b := f.client(), f.client()
	inside, leave := make(chan bool), make(chan bool)
	ended := make(chan int64, 2)
	go func() {
		id, err := once.Do(t.Context(), a, "k", []byte("request"), func(ctx context.Context, l *pglock.Lease) (int64, error) {
			close(inside)
			<-leave
			return f.pay("k", nil)(ctx, l)
		})
		if err != nil {
			t.Error(err)
		}
		ended <- id
	}()
	<-inside
	_, err := f.do(b, "k", nil, once.WithWait(0))
	wantErr(t, "no wait", err, once.ErrInProgress, pglock.ErrNotAcquired)
	var busy *pglock.BusyError
	if !errors.As(err, &busy) || busy.Name != once.LockName("k") {
		t.Errorf("no *BusyError: %v", err)
	}
	_, err = f.do(b, "k", nil, once.WithWait(30*time.Millisecond))
	wantErr(t, "a short wait", err, once.ErrInProgress, pglock.ErrTimeout)
	_, err = once.Do(t.Context(), b, "k", nil, f.pay("k", nil))
	wantErr(t, "another request", err, once.ErrMismatch)
	if info, err := once.Get(t.Context(), f.pool, "k", f.in); err != nil || !info.Running || info.State != "started" {
		t.Errorf("%+v, %v", info, err)
	}
	_, err = f.call(f.begin(""), "k")
	wantErr(t, "in a transaction", err, once.ErrOutcomeUnknown)
	go func() {
		id, err := f.do(b, "k", nil)
		if err != nil {
			t.Error(err)
		}
		ended <- id
	}()
	close(leave)
	if x, y := locktest.Receive(t, ended), locktest.Receive(t, ended); x != y || f.effects("k") != 1 {
		t.Errorf("%d and %d, with %d effects", x, y, f.effects("k"))
	}
}

// TestDoOvertaken: an attempt that lost its lease while fn ran. If no other attempt has replaced it,
// its outcome is recorded: it is known now. If another one has, its answer counts.
func TestDoOvertaken(t *testing.T) {
	t.Parallel()
	for name, rule := range map[string]once.DoOption{"replaced": once.WithRetry(), "not replaced": once.WithWait(time.Minute)} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			a, b := f.client(), f.client()
			var second int64
			var seen error
			first, err := once.Do(t.Context(), a, "k", []byte("request"), func(ctx context.Context, _ *pglock.Lease) (int64, error) {
				id, err := f.effect(t.Context(), f.pool, "k")
				<-ctx.Done() // as if the process were suspended
				second, seen = f.do(b, "k", nil, rule)
				return id, err
			}, once.WithLease(pglock.WithTTL(2*time.Second), pglock.WithRenewEvery(0)))
			wantErr(t, "first", err)
			third, err := f.do(b, "k", nil)
			wantErr(t, "third", err)
			if third != first {
				t.Errorf("first %d, third %d", first, third)
			}
			if name == "replaced" {
				wantErr(t, "second", seen)
				if second != first || f.effects("k") != 2 {
					t.Errorf("first %d, second %d, %d effects", first, second, f.effects("k"))
				}
				return
			}
			wantErr(t, "second", seen, once.ErrOutcomeUnknown)
			if f.effects("k") != 1 {
				t.Errorf("%d effects", f.effects("k"))
			}
		})
	}
}

// TestI4_StaleAttemptRecordsNothing: an attempt whose grant is not the current one can neither begin
// nor replace an attempt. In the control the current grant can.
func TestI4_StaleAttemptRecordsNothing(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.client()
	claim := func(f fixture, fence fencing.Fence, insteadOf any) (claimed bool, err error) {
		err = f.pool.QueryRow(t.Context(), schema.Render("SELECT claimed FROM pglock.once_claim('k', sha256(''), NULL, $1, $2, 'h', $3)", f.schema),
			fence.Name, int64(fence.Token), insteadOf).Scan(&claimed)
		return claimed, fencing.Explain(err)
	}
	acquire := func() *pglock.Lease {
		l, err := c.Acquire(t.Context(), once.LockName("k"))
		wantErr(t, "acquire", err)
		return l
	}
	old := acquire()
	wantErr(t, "release", old.Release(t.Context()))
	_, err := claim(f, old.Fence(), nil)
	wantErr(t, "after the release", err, fencing.ErrStale)
	held := acquire()
	_, err = claim(f, old.Fence(), nil)
	wantErr(t, "after a newer grant", err, fencing.ErrStale)
	if f.state("k") != "" {
		t.Error("a stale attempt has left a record")
	}
	for _, what := range []string{"control", "control: a repeated statement"} {
		if claimed, err := claim(f, held.Fence(), nil); !claimed || err != nil {
			t.Errorf("%s: %v, %v", what, claimed, err)
		}
	}
	_, err = claim(f, old.Fence(), int64(held.Token()))
	wantErr(t, "a stale attempt replaces a newer one", err, fencing.ErrStale)
	wantErr(t, "release", held.Release(t.Context()))
	newer := acquire()
	for _, insteadOf := range []any{nil, int64(old.Token()), int64(held.Token())} { // the last one is the control
		if claimed, err := claim(f, newer.Fence(), insteadOf); claimed != (insteadOf == int64(held.Token())) || err != nil {
			t.Errorf("instead of %v: %v, %v", insteadOf, claimed, err)
		}
	}
	wantErr(t, "release", newer.Release(t.Context()))
}

// TestDoRecordsDurably: also if the role commits asynchronously.
func TestDoRecordsDurably(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.client()
	l, err := c.Acquire(t.Context(), once.LockName("k"))
	wantErr(t, "acquire", err)
	for want, token := range map[string]any{"on": int64(l.Token()), "off": nil} {
		tx := f.begin("")
		if _, err := tx.Exec(t.Context(), "SET LOCAL synchronous_commit = off"); err != nil {
			t.Fatal(err)
		}
		if _, err := tx.Exec(t.Context(), schema.Render("SELECT pglock.once_claim('k', sha256(''), NULL, $1, $2, 'h', NULL)", f.schema), l.Name(), token); err != nil {
			t.Fatal(err)
		}
		var got string
		if err := tx.QueryRow(t.Context(), "SHOW synchronous_commit").Scan(&got); err != nil || got != want {
			t.Errorf("with token %v it is %q, %v, want %q", token, got, err, want)
		}
		_ = tx.Rollback(t.Context())
	}
	wantErr(t, "release", l.Release(t.Context()))
}

// TestDoSurvivesFailures of the database between the effect and its record.
func TestDoSurvivesFailures(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.client()
	role := schema.Quote(pgtest.RoleOf(f.pool))
	during := func(key string, what func(), opts ...once.DoOption) (int64, error) {
		return once.Do(t.Context(), c, key, nil, func(ctx context.Context, _ *pglock.Lease) (int64, error) {
			id, err := f.effect(ctx, f.pool, key)
			what()
			return id, err
		}, opts...)
	}
	first, err := during("killed", func() {
		f.sql("SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE usename = $1", pgtest.RoleOf(f.pool))
	})
	wantErr(t, "all connections are killed", err)
	if again, err := during("killed", func() {}); again != first || err != nil {
		t.Errorf("afterwards: %d, %v, at first %d", again, err, first)
	}
	first, err = during("applied", func() { // as by a first statement whose reply was lost
		f.sql("UPDATE pglock.once_keys SET state = 'done', result = '99', expires_at = clock_timestamp() + interval '1 h' WHERE key = 'applied'")
	})
	if first != 99 || err != nil {
		t.Errorf("a record that already exists: %d, %v", first, err)
	}
	first, err = during("deleted", func() { f.sql("DELETE FROM pglock.once_keys WHERE key = 'deleted'") })
	wantErr(t, "the record was deleted", err, once.ErrNotRecorded, once.ErrOutcomeUnknown)
	if first == 0 {
		t.Error("the result is missing")
	}
	first, err = during("refused", func() { f.sql("REVOKE UPDATE ON pglock.once_keys FROM " + role) })
	wantErr(t, "the record is refused", err, once.ErrNotRecorded, once.ErrOutcomeUnknown)
	f.sql("GRANT UPDATE ON pglock.once_keys TO " + role)
	_, err = during("refused", func() {})
	wantErr(t, "the next call", err, once.ErrOutcomeUnknown)
	asked, err := during("refused", func() {}, once.WithLookup(func(ctx context.Context, _ *pglock.Lease, s once.Started) (id int64, err error) {
		return id, f.pool.QueryRow(ctx, "SELECT id FROM "+pgx.Identifier{f.schema, "effects"}.Sanitize()+" WHERE key = $1", s.Key).Scan(&id)
	}))
	if asked != first || err != nil || first == 0 || f.effects("refused") != 1 {
		t.Errorf("asked: %d, %v, at first %d", asked, err, first)
	}
}

// TestDoContext: fn's context ends with ctx, and its outcome is recorded all the same.
func TestDoContext(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.client()
	ctx, cancel := context.WithCancel(t.Context())
	first, err := once.Do(ctx, c, "k", nil, func(ctx context.Context, _ *pglock.Lease) (int, error) {
		cancel()
		<-ctx.Done()
		return 7, nil
	})
	wantErr(t, "fn returns after ctx is done", err)
	again, err := once.Do(t.Context(), c, "k", nil, func(context.Context, *pglock.Lease) (int, error) { return 8, nil })
	if first != 7 || again != 7 || err != nil {
		t.Errorf("%d, then %d, %v", first, again, err)
	}
	_, err = once.Do(ctx, c, "l", nil, func(context.Context, *pglock.Lease) (int, error) { t.Error("fn ran"); return 0, nil })
	wantErr(t, "ctx is done before", err, context.Canceled)
	if s := f.state("l"); s != "" {
		t.Errorf("the state is %q", s)
	}
}

// TestDoAfterTheExpiry: the key may be used again, for another request.
func TestDoAfterTheExpiry(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.client()
	_, err := f.do(c, "k", nil, once.WithRetention(time.Millisecond))
	wantErr(t, "first", err)
	pgtest.Eventually(t, "the key expires", func() bool { return f.state("k") == "" })
	_, err = once.Do(t.Context(), c, "k", []byte("another request"), f.pay("k", nil))
	wantErr(t, "another request", err)
	_, err = f.do(c, "k", nil)
	wantErr(t, "the first request", err, once.ErrMismatch)
	if n := f.effects("k"); n != 2 {
		t.Errorf("%d effects", n)
	}
}
