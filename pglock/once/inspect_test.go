package once_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglock/pglock-go/advisory"
	"github.com/pglock/pglock-go/fencing"
	"github.com/pglock/pglock-go/internal/errs"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/internal/pgtx"
	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/once"
)

// TestPrune deletes what has expired, and nothing else. It skips a row that a transaction uses.
func TestPrune(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.sql(`INSERT INTO pglock.once_keys (key, fingerprint, state, result, created_at, started_at, expires_at)
		SELECT 'old ' || n, sha256(''), 'done', '', '2020-01-01', '2020-01-01', CASE WHEN n % 2 = 0 THEN '2020-01-02' ELSE clock_timestamp() + interval '1 h' END::timestamptz
		FROM generate_series(1, 2500) AS n`)
	f.sql(`INSERT INTO pglock.once_keys (key, fingerprint, state, token, created_at, started_at) VALUES ('started', sha256(''), 'started', 1, '2020-01-01', '2020-01-01')`)
	tx := f.begin("")
	_, err := once.Tx(t.Context(), tx, "old 2", nil, func(context.Context) (int, error) { return 1, nil }, f.in)
	wantErr(t, "an expired key is used again", err)
	n, err := once.Prune(t.Context(), f.pool, f.in)
	if n != 1249 || err != nil {
		t.Errorf("%d deleted, %v, want 1249", n, err)
	}
	f.commit(tx)
	if left := scanned[int](f, "SELECT count(*) FROM pglock.once_keys"); left != 1252 || f.state("started") != "started" || f.state("old 2") != "done" {
		t.Errorf("%d left", left)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = once.Prune(ctx, f.pool, f.in)
	wantErr(t, "ctx is done", err, context.Canceled)
}

func TestInvalidInput(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.client()
	tx := f.begin("")
	ok := func(context.Context) (int, error) { return 1, nil }
	lookup := once.WithLookup(func(context.Context, *pglock.Lease, once.Started) (s string, err error) { return s, nil })
	inTx := func(key string, opts ...once.TxOption) error {
		_, err := once.Tx(t.Context(), tx, key, nil, ok, append([]once.TxOption{f.in}, opts...)...)
		return err
	}
	do := func(key string, opts ...once.DoOption) error {
		_, err := once.Do(t.Context(), c, key, nil, func(context.Context, *pglock.Lease) (int, error) { return 1, nil }, opts...)
		return err
	}
	for _, key := range []string{"", strings.Repeat("k", errs.MaxName+1), "a\x00b", "\xff"} {
		wantErr(t, "Tx", inTx(key), once.ErrInvalidKey)
		wantErr(t, "Do", do(key), once.ErrInvalidKey)
		_, err := once.Get(t.Context(), f.pool, key, f.in)
		wantErr(t, "Get", err, once.ErrInvalidKey)
	}
	long := strings.Repeat("k", errs.MaxName)
	wantErr(t, "control: the longest key in Tx", inTx(long))
	wantErr(t, "control: the longest key in Do", do(long[1:]+"l"))
	if name := once.LockName(long); len(name) > 512 || name == once.LockName(long[1:]+"l") || once.LockName("k") != "once:k" {
		t.Errorf("the lock is %q", name)
	}
	for what, option := range map[string]once.Option{
		"no retention": once.WithRetention(0), "long retention": once.WithRetention(100 * 365 * 24 * time.Hour),
		"negative wait": once.WithWait(-1), "nil": nil,
	} {
		wantErr(t, what, inTx("k", option), pglock.ErrInvalidOption)
		wantErr(t, what, do("k", option), pglock.ErrInvalidOption)
	}
	for what, opts := range map[string][]once.DoOption{
		"two rules": {once.WithRetry(), lookup}, "lookup with another type": {lookup}, "nil lookup": {once.WithLookup[int](nil)},
		"a lease option": {once.WithLease(pglock.WithTTL(-1))},
	} {
		wantErr(t, what, do("k", opts...), pglock.ErrInvalidOption)
	}
	_, err := once.Tx[int](t.Context(), tx, "k", nil, nil, f.in)
	wantErr(t, "nil fn in Tx", err, pglock.ErrInvalidOption)
	_, err = once.Do[int](t.Context(), c, "k", nil, nil)
	wantErr(t, "nil fn in Do", err, pglock.ErrInvalidOption)
	_, err = f.do(nil, "k", nil)
	wantErr(t, "nil client", err, pglock.ErrInvalidOption)
	_, err = once.Get(t.Context(), nil, "k")
	wantErr(t, "nil database in Get", err, pglock.ErrInvalidOption)
	_, err = once.Prune(t.Context(), nil)
	wantErr(t, "nil database in Prune", err, pglock.ErrInvalidOption)
	wantErr(t, "nil database in Resolve", once.Resolve(t.Context(), nil, "k", 1, true), pglock.ErrInvalidOption)
	_, err = f.call(pgx.Tx(nil), "k")
	wantErr(t, "nil transaction", err, advisory.ErrTx)
	wantErr(t, "a reserved schema", inTx("k", once.WithSchema("pg_x")), pglock.ErrInvalidOption)
	f.usable(tx)
	_, _ = tx.Exec(t.Context(), "SELECT 1/0")
	wantErr(t, "an aborted transaction", inTx("k"), advisory.ErrTx)
	_ = tx.Rollback(t.Context())
	wantErr(t, "a transaction that has ended", inTx("k"), advisory.ErrTx)
	if n := f.effects("k"); n != 0 || f.state("k") != "" {
		t.Errorf("%d effects, state %q", n, f.state("k"))
	}
}

// TestRightsAndSchema: each has an error of its own, and the transaction remains usable.
func TestRightsAndSchema(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	ok := func(context.Context) (int, error) { return 1, nil }
	writer := pgtest.WriterPool(t, f.admin, f.schema)
	calls := map[string]func(in once.SchemaOption) error{
		"Tx": func(in once.SchemaOption) error {
			return pgx.BeginFunc(t.Context(), writer, func(tx pgx.Tx) error {
				_, err := once.Tx(t.Context(), tx, "k", nil, ok, in)
				var one int
				return errors.Join(err, tx.QueryRow(t.Context(), "SELECT 1").Scan(&one))
			})
		},
		"Get":   func(in once.SchemaOption) error { _, err := once.Get(t.Context(), writer, "k", in); return err },
		"Prune": func(in once.SchemaOption) error { _, err := once.Prune(t.Context(), writer, in); return err },
	}
	for name, call := range calls {
		err := call(f.in)
		wantErr(t, name+" by a role that may not", err, pglock.ErrPrivilege)
		if pgtx.SQLState(err) != pgtx.InsufficientPrivilege {
			t.Errorf("%s: another statement failed: %v", name, err)
		}
		wantErr(t, name+" in no schema", call(once.WithSchema("nowhere")), fencing.ErrSchemaMissing)
	}
	_, err := once.Get(t.Context(), f.pool, "k", f.in)
	wantErr(t, "control", err, once.ErrNotFound)
}

// TestHostileRows: a role that may write keys can't leave a row that makes later calls fail.
func TestHostileRows(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	for _, values := range []string{
		"('', sha256(''), 'done', '', 1, now(), now(), now())",
		"('k', '', 'done', '', 1, now(), now(), now())",
		"('k', sha256(''), 'other', '', 1, now(), now(), now())",
		"('k', sha256(''), 'done', '', 0, now(), now(), now())",
		"('k', sha256(''), 'done', '', 1, now(), 'infinity', now())",
		"('k', sha256(''), 'done', '', 1, now(), now(), 'infinity')",
		"('k', sha256(''), 'done', '', 1, now(), now(), NULL)",
		"('k', sha256(''), 'started', '', 1, now(), now(), NULL)",
		"('k', sha256(''), 'started', NULL, 1, now(), now(), now())",
		"('k', sha256(''), 'done', convert_to(repeat('x', 1048577), 'UTF8'), 1, now(), now(), now())",
	} {
		_, err := f.pool.Exec(t.Context(), "INSERT INTO "+pgx.Identifier{f.schema, "once_keys"}.Sanitize()+
			" (key, fingerprint, state, result, token, created_at, started_at, expires_at) VALUES "+values)
		if !strings.HasPrefix(pgtx.SQLState(err), "23") {
			t.Errorf("%s: %v", values, err)
		}
	}
}

// TestResolve ends an attempt without an outcome, and no other one.
func TestResolve(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.client()
	ran := 0
	do := func() error {
		_, err := once.Do(t.Context(), c, "k", nil, func(context.Context, *pglock.Lease) (int, error) { ran++; return 1, context.Canceled })
		return err
	}
	resolve := func(token fencing.Token, happened bool) error {
		return once.Resolve(t.Context(), f.pool, "k", token, happened, f.in)
	}
	wantErr(t, "no record", resolve(1, true), once.ErrNotFound)
	var unknown *once.UnknownError
	if err := do(); !errors.As(err, &unknown) {
		t.Fatal(err)
	}
	wantErr(t, "another token", resolve(unknown.Token+1, false), once.ErrInProgress)
	wantErr(t, "it did not happen", resolve(unknown.Token, false))
	first := unknown.Token
	if err := do(); !errors.As(err, &unknown) || ran != 2 {
		t.Fatalf("%v, ran %d times", err, ran)
	}
	wantErr(t, "an older attempt", resolve(first, true), once.ErrInProgress)
	wantErr(t, "it happened", resolve(unknown.Token, true))
	wantErr(t, "the next call", do(), once.ErrNoResult)
	wantErr(t, "again", resolve(unknown.Token, false), once.ErrInProgress)
	if ran != 2 {
		t.Errorf("ran %d times", ran)
	}
	_, err := once.Do(t.Context(), c, "running", nil, func(_ context.Context, l *pglock.Lease) (int, error) {
		wantErr(t, "it runs", once.Resolve(t.Context(), f.pool, "running", l.Token(), true, f.in), once.ErrInProgress)
		return 1, nil
	})
	wantErr(t, "the one that ran", err)
	wantErr(t, "an invalid key", once.Resolve(t.Context(), f.pool, "", 1, true, f.in), once.ErrInvalidKey)
}
