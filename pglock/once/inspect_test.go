package once_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

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
	do := func(context.Context, *pglock.Lease) (int, error) { return 1, nil }
	for _, key := range []string{"", strings.Repeat("k", once.MaxKey+1), "a\x00b", "\xff"} {
		_, err := once.Tx(t.Context(), tx, key, nil, ok, f.in)
		wantErr(t, "Tx", err, once.ErrInvalidKey)
		_, err = once.Do(t.Context(), c, key, nil, do)
		wantErr(t, "Do", err, once.ErrInvalidKey)
		_, err = once.Get(t.Context(), f.pool, key, f.in)
		wantErr(t, "Get", err, once.ErrInvalidKey)
	}
	long := strings.Repeat("k", once.MaxKey)
	_, err := once.Tx(t.Context(), tx, long, nil, ok, f.in)
	wantErr(t, "control: the longest key in Tx", err)
	_, err = once.Do(t.Context(), c, long[1:]+"l", nil, do)
	wantErr(t, "control: the longest key in Do", err)
	if name := once.LockName(long); len(name) > 512 || name == once.LockName(long[1:]+"l") || once.LockName("k") != "once:k" {
		t.Errorf("the lock is %q", name)
	}
	for what, option := range map[string]once.Option{
		"no retention":   once.WithRetention(0),
		"long retention": once.WithRetention(100 * 365 * 24 * time.Hour),
		"negative wait":  once.WithWait(-1),
		"nil":            nil,
	} {
		_, err := once.Tx(t.Context(), tx, "k", nil, ok, f.in, option)
		wantErr(t, what, err, once.ErrInvalidOption)
		_, err = once.Do(t.Context(), c, "k", nil, do, option)
		wantErr(t, what, err, once.ErrInvalidOption)
	}
	for what, opts := range map[string][]once.DoOption{
		"two rules":                {once.WithRetry(), once.WithLookup(func(context.Context, *pglock.Lease, once.Started) (int, error) { return 0, nil })},
		"lookup with another type": {once.WithLookup(func(context.Context, *pglock.Lease, once.Started) (string, error) { return "", nil })},
		"nil lookup":               {once.WithLookup[int](nil)},
		"a lease option":           {once.WithLease(pglock.WithTTL(-1))},
	} {
		_, err := once.Do(t.Context(), c, "k", nil, do, opts...)
		wantErr(t, what, err, once.ErrInvalidOption)
	}
	_, err = once.Tx[int](t.Context(), tx, "k", nil, nil, f.in)
	wantErr(t, "nil fn in Tx", err, once.ErrInvalidOption)
	_, err = once.Do[int](t.Context(), c, "k", nil, nil)
	wantErr(t, "nil fn in Do", err, once.ErrInvalidOption)
	_, err = once.Do(t.Context(), nil, "k", nil, do)
	wantErr(t, "nil client", err, once.ErrInvalidOption)
	_, err = once.Tx(t.Context(), pgx.Tx(nil), "k", nil, ok)
	wantErr(t, "nil transaction", err, once.ErrTx)
	_, err = once.Tx(t.Context(), tx, "k", nil, ok, once.WithSchema("pg_x"))
	wantErr(t, "a reserved schema", err, once.ErrInvalidOption)
	_, err = once.Unresolved(t.Context(), f.pool, 0, f.in)
	wantErr(t, "no limit", err, once.ErrInvalidOption)
	f.usable(tx)
	_, _ = tx.Exec(t.Context(), "SELECT 1/0")
	_, err = once.Tx(t.Context(), tx, "k", nil, ok, f.in)
	wantErr(t, "an aborted transaction", err, once.ErrTx)
	_ = tx.Rollback(t.Context())
	_, err = once.Tx(t.Context(), tx, "k", nil, ok, f.in)
	wantErr(t, "a transaction that has ended", err, once.ErrTx)
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
		"Get":        func(in once.SchemaOption) error { _, err := once.Get(t.Context(), writer, "k", in); return err },
		"Unresolved": func(in once.SchemaOption) error { _, err := once.Unresolved(t.Context(), writer, 1, in); return err },
		"Prune":      func(in once.SchemaOption) error { _, err := once.Prune(t.Context(), writer, in); return err },
	}
	for name, call := range calls {
		err := call(f.in)
		wantErr(t, name+" by a role that may not", err, once.ErrPrivilege)
		if pgtx.SQLState(err) != pgtx.InsufficientPrivilege {
			t.Errorf("%s: another statement failed: %v", name, err)
		}
		wantErr(t, name+" in no schema", call("nowhere"), once.ErrSchemaMissing)
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
