package advisory_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/advisory"
	"github.com/pglock/pglock-go/internal/pgtest"
)

// TestP55_AWaitingWriterStopsNewReaders: transactions queue in the server, so that readers that
// overlap do not keep a writer out. The control has no writer that waits.
func TestP55_AWaitingWriterStopsNewReaders(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	key := advisory.NewKey("shared", t.Name())
	reader, another, writer, next := begin(t, pool), begin(t, pool), begin(t, pool), begin(t, pool)
	if err := errors.Join(advisory.LockShared(t.Context(), reader, key), advisory.TryLockShared(t.Context(), another, key)); err != nil {
		t.Fatalf("control: two readers: %v", err)
	}
	if err := advisory.TryLock(t.Context(), next, key); !errors.Is(err, advisory.ErrNotAcquired) {
		t.Errorf("a writer's try beside readers: %v", err)
	}
	granted := make(chan error, 1)
	go func() { granted <- advisory.Lock(t.Context(), writer, key) }()
	pgtest.Eventually(t, "the writer waits", func() bool { return waitsFor(t, pool, key) == 1 })
	if err := advisory.TryLockShared(t.Context(), next, key); !errors.Is(err, advisory.ErrNotAcquired) {
		t.Errorf("a reader beside a writer that waits: %v", err)
	}
	if err := errors.Join(reader.Rollback(t.Context()), another.Rollback(t.Context()), <-granted, advisory.Lock(t.Context(), writer, key)); err != nil {
		t.Errorf("the writer, and again in its transaction: %v", err)
	}
	if err := advisory.LockShared(t.Context(), next, key, advisory.WithTimeout(time.Millisecond)); !errors.Is(err, advisory.ErrTimeout) {
		t.Errorf("a reader beside the writer: %v", err)
	}
}

// TestP34_TimeoutLeavesTheTransaction: a wait that ends without the lock leaves the caller's
// transaction usable, with its settings, and without the lock. The error has the reason (P23). A wait that
// is granted the lock leaves the settings as well.
func TestP34_TimeoutLeavesTheTransaction(t *testing.T) {
	t.Parallel()
	for _, mode := range []pgx.QueryExecMode{pgx.QueryExecModeCacheStatement, pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol} {
		t.Run(mode.String(), func(t *testing.T) {
			t.Parallel()
			pool := pgtest.Pool(t, func(c *pgxpool.Config) { c.ConnConfig.DefaultQueryExecMode = mode; c.MaxConns = 16 })
			testTimeout(t, pool, advisory.NewKey(t.Name(), "number"))
		})
	}
}

func testTimeout(t *testing.T, pool *pgxpool.Pool, key advisory.Key) {
	t.Helper()
	holder(t, pool, key)
	why := errors.New("the caller's reason")
	canceled, cancel := context.WithCancelCause(t.Context())
	time.AfterFunc(100*time.Millisecond, func() { cancel(why) })
	const short = 100 * time.Millisecond
	for name, tc := range map[string]struct {
		ctx  context.Context
		own  string // the transaction's lock_timeout
		opts []advisory.LockOption
		is   []error
		not  []error
	}{
		"WithTimeout": {t.Context(), "7s", []advisory.LockOption{advisory.WithTimeout(short)},
			[]error{advisory.ErrTimeout}, []error{context.DeadlineExceeded, context.Canceled, advisory.ErrDeadlock}},
		"deadline":          {soon(t, short), "0", nil, []error{context.DeadlineExceeded}, []error{advisory.ErrTimeout, context.Canceled}},
		"canceled":          {canceled, "1min", nil, []error{context.Canceled, why}, []error{advisory.ErrTimeout, context.DeadlineExceeded}},
		"own lock_timeout":  {t.Context(), "90ms", []advisory.LockOption{advisory.WithTimeout(time.Hour)}, []error{advisory.ErrTimeout}, []error{context.DeadlineExceeded}},
		"own, nothing else": {t.Context(), "90ms", nil, []error{advisory.ErrTimeout}, []error{context.DeadlineExceeded}},
		"own, far deadline": {soon(t, time.Hour), "90ms", nil, []error{advisory.ErrTimeout}, []error{context.DeadlineExceeded}},
	} {
		tx := begin(t, pool)
		if _, err := tx.Exec(t.Context(), "SET statement_timeout = '5min'; SET LOCAL lock_timeout = '"+tc.own+"'"); err != nil {
			t.Fatal(err)
		}
		err := advisory.Lock(tc.ctx, tx, key, tc.opts...) // otherwise it would wait until the test ends
		if !isAll(err, append(tc.is, advisory.ErrNotAcquired)...) {
			t.Errorf("%s: %v", name, err)
		}
		for _, not := range tc.not {
			if errors.Is(err, not) {
				t.Errorf("%s: is %v too: %v", name, not, err)
			}
		}
		var failed *advisory.NotAcquiredError
		if !errors.As(err, &failed) || len(failed.Keys) != 1 || failed.Keys[0] != key {
			t.Errorf("%s: %v", name, err)
		}
		usable(t, tx)
		if got := setting(t, tx, "lock_timeout"); got != tc.own {
			t.Errorf("%s: lock_timeout is %s, it was %s", name, got, tc.own)
		}
		if got := setting(t, tx, "statement_timeout"); got != "5min" {
			t.Errorf("%s: statement_timeout is %s", name, got)
		}
		if n := held(t, tx); n != 0 {
			t.Errorf("%s: %d locks were left", name, n)
		}
		// A grant restores lock_timeout, too.
		free := func(n string) advisory.Key { return advisory.NewKey(t.Name()+name, n) }
		err = errors.Join(advisory.Lock(t.Context(), tx, free("a"), advisory.WithTimeout(time.Minute)),
			advisory.LockAll(soon(t, time.Hour), tx, []advisory.Key{free("b"), free("c")}),
			advisory.Lock(t.Context(), tx, free("d"), advisory.WithTimeout(100*365*24*time.Hour)))
		if got := setting(t, tx, "lock_timeout"); err != nil || got != tc.own || held(t, tx) != 4 {
			t.Errorf("%s: after four grants lock_timeout is %s, %v", name, got, err)
		}
		if err := tx.Commit(t.Context()); err != nil {
			t.Errorf("%s: commit: %v", name, err)
		}
	}
}

// TestP33_GrantedAtTheTimeout: many waits end at about the moment of the release. Whichever comes
// first, an error means that the lock is not held, and nil that it is.
func TestP33_GrantedAtTheTimeout(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	key := advisory.NewKey("granted", t.Name())
	const d = 20 * time.Millisecond
	outcomes := map[bool]int{}
	for i := range 60 {
		before := holder(t, pool, key)
		released := make(chan error, 1)
		time.AfterFunc(d-2*time.Millisecond+time.Duration(i%9)*time.Millisecond/2, func() { released <- before.Rollback(context.Background()) })
		tx := begin(t, pool)
		var err error
		if i%2 == 0 {
			err = advisory.Lock(t.Context(), tx, key, advisory.WithTimeout(d))
		} else {
			err = advisory.Lock(soon(t, d), tx, key)
		}
		if e := <-released; e != nil {
			t.Fatal(e)
		}
		if err != nil && !errors.Is(err, advisory.ErrNotAcquired) {
			t.Errorf("%v", err)
		}
		if n := held(t, tx); (n == 1) != (err == nil) {
			t.Errorf("%d locks are held, and the error is %v", n, err)
		}
		outcomes[err == nil]++
		_ = tx.Rollback(t.Context())
	}
	t.Logf("granted %d times, not granted %d times", outcomes[true], outcomes[false])
}

// TestP37_Deadlock: of two transactions that lock in opposite order, one gets ErrDeadlock and the
// other continues. LockAll avoids the deadlock, whatever the order of its arguments.
func TestP37_Deadlock(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	a, b := advisory.NewKey(t.Name(), "a"), advisory.NewKey(t.Name(), "b")
	one, two := holder(t, pool, a), holder(t, pool, b)
	errs := make(chan error, 1)
	go func() {
		err := advisory.Lock(t.Context(), one, b)
		if err != nil { // the rollback of the victim lets the other continue
			err = errors.Join(err, one.Rollback(context.Background()))
		}
		errs <- err
	}()
	err := advisory.Lock(t.Context(), two, a)
	if err != nil {
		usable(t, two)
		_ = two.Rollback(t.Context())
	}
	err = errors.Join(err, <-errs)
	_, _ = one.Rollback(t.Context()), two.Rollback(t.Context())
	var pg *pgconn.PgError
	if !isAll(err, advisory.ErrDeadlock, advisory.ErrNotAcquired) || !errors.As(err, &pg) || pg.Code != "40P01" || !strings.Contains(err.Error(), "run the transaction again") {
		t.Errorf("neither was told of the deadlock: %v", err)
	}

	keys := []advisory.Key{a, b, advisory.KeyFromInt64(37), advisory.KeyFromInt64(-37), a}
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			for j := range 20 {
				n := (i + j) % len(keys)
				err := pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
					return advisory.LockAll(t.Context(), tx, slices.Concat(keys[n:], keys[:n]))
				})
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
}

// TestLockAllIsAllOrNothing: if one key is held, none of the others is locked. The error names each key
// once, in locking order, and the caller's slice is unchanged. The timeout bounds the wait for all keys
// together.
func TestLockAllIsAllOrNothing(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	var keys []advisory.Key
	for i := range 5 {
		keys = append(keys, advisory.NewKey(t.Name(), fmt.Sprint(i)))
	}
	sorted := slices.SortedFunc(slices.Values(keys), func(a, b advisory.Key) int { return cmp.Compare(a.Int64(), b.Int64()) })
	for _, key := range keys {
		other := holder(t, pool, key)
		tx := begin(t, pool)
		given := slices.Concat(keys, keys[:2])
		err := advisory.LockAll(t.Context(), tx, given, advisory.WithTimeout(200*time.Millisecond))
		var failed *advisory.NotAcquiredError
		if !isAll(err, advisory.ErrNotAcquired, advisory.ErrTimeout) || !errors.As(err, &failed) || !slices.Equal(failed.Keys, sorted) || !slices.Equal(given, slices.Concat(keys, keys[:2])) {
			t.Errorf("one is held: %v, of %v", err, given)
		}
		if n := held(t, tx); n != 0 {
			t.Errorf("%d locks are left", n)
		}
		usable(t, tx)
		_ = other.Rollback(t.Context())
		if err := advisory.LockAll(t.Context(), tx, keys, advisory.WithTimeout(200*time.Millisecond)); err != nil {
			t.Errorf("none is held: %v", err)
		}
		if n := held(t, tx); n != len(keys) {
			t.Errorf("%d locks", n)
		}
		_ = tx.Rollback(t.Context())
	}
	// Three waits in a row, each shorter than the timeout, are longer than the timeout.
	tx := begin(t, pool)
	var rolledBack sync.WaitGroup
	for i, key := range keys[:3] {
		one := holder(t, pool, key)
		rolledBack.Add(1)
		time.AfterFunc(time.Duration(i+1)*150*time.Millisecond, func() { defer rolledBack.Done(); _ = one.Rollback(context.Background()) })
	}
	defer rolledBack.Wait()
	begun := time.Now()
	if err := advisory.LockAll(t.Context(), tx, keys, advisory.WithTimeout(250*time.Millisecond)); !errors.Is(err, advisory.ErrTimeout) {
		t.Errorf("after %v: %v", time.Since(begun), err)
	}
	if err := advisory.LockAll(t.Context(), tx, nil); err != nil {
		t.Errorf("no keys: %v", err)
	}
}

// TestLockBadTransaction: a transaction that has ended, is aborted or nil is ErrTx. A nil
// *pgxpool.Tx in a pgx.Tx is not equal to nil.
func TestLockBadTransaction(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	key := advisory.NewKey("bad", t.Name())
	committed, aborted := begin(t, pool), begin(t, pool)
	ok(t, committed.Commit(t.Context()))
	_, _ = aborted.Exec(t.Context(), "SELECT 1/0")
	var none *pgxpool.Tx
	for name, tx := range map[string]advisory.Tx{"committed": committed, "aborted": aborted, "nil": nil, "a nil pointer": none} {
		for what, err := range map[string]error{
			"Lock":          advisory.Lock(t.Context(), tx, key),
			"Lock, timeout": advisory.Lock(t.Context(), tx, key, advisory.WithTimeout(time.Second)),
			"TryLock":       advisory.TryLock(t.Context(), tx, key),
			"LockAll":       advisory.LockAll(t.Context(), tx, []advisory.Key{key, advisory.KeyFromInt64(1)}),
		} {
			if !errors.Is(err, advisory.ErrTx) || errors.Is(err, advisory.ErrNotAcquired) {
				t.Errorf("%s in a transaction that is %s: %v", what, name, err)
			}
		}
	}
}
