package rowlock_test

import (
	"context"
	"database/sql/driver"
	"errors"
	"net"
	"net/netip"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/advisory"
	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/rowlock"
	"github.com/pglock/pglock-go/pglock/sqltx"
)

// TestStrengths: the conflicts are those of PostgreSQL's table 13.3.
func TestStrengths(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	strengths := [][]rowlock.Option{{rowlock.ForKeyShare}, {rowlock.ForShare}, {rowlock.ForNoKeyUpdate}, nil}
	conflict := [4][4]bool{{3: true}, {2: true, 3: true}, {1: true, 2: true, 3: true}, {true, true, true, true}}
	for i, hold := range strengths {
		holder := f.begin()
		f.locked(holder, "a", hold...)
		for j, try := range strengths {
			other := f.begin()
			err := f.lock(t.Context(), other, "a", append(try, rowlock.NoWait)...)
			if refused := errors.Is(err, advisory.ErrNotAcquired); refused != conflict[i][j] || err != nil && !refused {
				t.Errorf("%d behind %d: %v", j, i, err)
			}
			_ = other.Rollback(t.Context())
		}
		_ = holder.Rollback(t.Context())
	}
}

func TestMissingKeys(t *testing.T) {
	t.Parallel()
	bothWays(t, func(t *testing.T, f fixture, begin func() advisory.Tx) {
		t.Helper()
		tx := begin()
		var missing *rowlock.MissingError
		err := f.lock(t.Context(), tx, "xbay")
		if !errors.As(err, &missing) || !errors.Is(err, rowlock.ErrMissing) || !reflect.DeepEqual(missing.Keys, []any{"x", "y"}) {
			t.Errorf("%v", err)
		}
		f.usable(tx, "0")
		tx = begin()
		if got := f.locked(tx, "xba", rowlock.AllowMissing); got != "ab" || f.free() != "cde" {
			t.Errorf("allowed: %q", got)
		}
		if got := f.locked(begin(), "bcx", rowlock.SkipLocked); got != "c" {
			t.Errorf("with SkipLocked: %q", got)
		}
		if rows, err := rowlock.Lock(t.Context(), begin(), f.stock.Table, []string{}); err != nil || len(rows) > 0 {
			t.Errorf("without keys: %v %v", rows, err)
		}
	})
}

// TestConditionSelectsRows: the key is unique only together with the warehouse, and a comment at the
// end of the condition hides nothing.
func TestConditionSelectsRows(t *testing.T) {
	t.Parallel()
	bothWays(t, func(t *testing.T, f fixture, begin func() advisory.Tx) {
		t.Helper()
		f.sql(`ALTER TABLE STOCK DROP CONSTRAINT "St ock's_pkey", ADD PRIMARY KEY ("the sku", warehouse)`)
		f.sql(`INSERT INTO STOCK VALUES ('a', 20, 2), ('b', 20, 2)`)
		two, tx := f.stock, begin()
		two.Where, two.Args = `t.warehouse = $1 OR t."the sku" = $2 -- there`, []any{2, "none"}
		if left, err := rowlock.Reserve(t.Context(), tx, two, []line{{"a", "15"}}); err != nil || left["a"] != "5" {
			t.Errorf("%v %v", left, err)
		}
		if got, err := rowlock.Lock(t.Context(), tx, two.Table, []string{"b", "a"}); err != nil || len(got) != 2 {
			t.Errorf("%v %v", got, err)
		}
		if err := second(rowlock.Lock(t.Context(), tx, two.Table, []string{"a", "c"})); !errors.Is(err, rowlock.ErrMissing) {
			t.Errorf("in another warehouse: %v", err)
		}
		for what, err := range map[string]error{
			"two rows for one line":   second(rowlock.Reserve(t.Context(), tx, f.stock, []line{{"a", "1"}})),
			"two rows for two lines":  second(rowlock.Reserve(t.Context(), tx, f.stock, []line{{"b", "1"}, {"x", "1"}})),
			"two rows for two keys":   f.lock(t.Context(), tx, "bx"),
			"two rows and no missing": f.lock(t.Context(), tx, "bx", rowlock.AllowMissing),
		} {
			if !errors.Is(err, advisory.ErrInvalidOption) {
				t.Errorf("%s: %v", what, err)
			}
		}
		ok(t, tx.Commit(t.Context()))
		f.quantities("a10 a5 b10 b20 c10 d10 e10")
	})
}

// opaque hides the connection of a transaction, so that it can't be canceled: the server's
// lock_timeout alone bounds its waits.
type opaque struct{ advisory.Tx }

// TestP34_WaitsEnd: each wait that ends, and each success, leaves no lock and the transaction's own
// lock_timeout.
func TestP34_WaitsEnd(t *testing.T) {
	t.Parallel()
	bothWays(t, func(t *testing.T, f fixture, begin func() advisory.Tx) {
		t.Helper()
		soon := func() context.Context {
			ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			t.Cleanup(cancel)
			return ctx
		}
		far, cancel := context.WithTimeout(t.Context(), 100*365*24*time.Hour)
		defer cancel()
		lines := []line{{"a", "1"}, {"c", "1"}}
		for what, tc := range map[string]struct {
			own   string // lock_timeout
			cause error
			call  func(tx advisory.Tx) error
		}{
			"NoWait":              {"17s", nil, func(tx advisory.Tx) error { return f.lock(t.Context(), tx, "dcb", rowlock.NoWait) }},
			"NoWait, no cancel":   {"0", nil, func(tx advisory.Tx) error { return f.lock(far, opaque{tx}, "b", rowlock.NoWait) }},
			"NoWait, Reserve":     {"17s", nil, func(tx advisory.Tx) error { return second(rowlock.Reserve(far, tx, f.stock, lines, rowlock.NoWait)) }},
			"the deadline":        {"1min", context.DeadlineExceeded, func(tx advisory.Tx) error { return f.lock(soon(), tx, "ba") }},
			"the deadline, Claim": {"1min", context.DeadlineExceeded, func(tx advisory.Tx) error { return second(f.claim(soon(), tx, "")) }},
			"its own time":        {"20ms", advisory.ErrTimeout, func(tx advisory.Tx) error { return f.lock(far, tx, "b") }},
		} {
			for _, hold := range []string{"SELECT FROM STOCK FOR UPDATE", "LOCK TABLE STOCK"} {
				if what == "the deadline, Claim" && hold != "LOCK TABLE STOCK" {
					continue // it does not wait for rows
				}
				holder, tx := f.begin(), begin()
				f.in(holder, hold)
				f.in(tx, "SELECT set_config('lock_timeout', $1, true)", tc.own)
				err := tc.call(tx)
				var refused *rowlock.NotAcquiredError
				if !errors.As(err, &refused) || !errors.Is(err, advisory.ErrNotAcquired) || refused.Table == "" ||
					(refused.Cause == nil) != (tc.cause == nil) || tc.cause != nil && !errors.Is(err, tc.cause) || errors.Is(err, advisory.ErrTimeout) != errors.Is(tc.cause, advisory.ErrTimeout) {
					t.Errorf("%s, %s: %v", what, hold, err)
				}
				_ = holder.Rollback(t.Context())
				f.usable(tx, tc.own)
				_ = tx.Rollback(t.Context())
			}
			tx := begin()
			f.in(tx, "SELECT set_config('lock_timeout', $1, true)", tc.own)
			if err := errors.Join(f.lock(far, tx, "a"), second(rowlock.Reserve(t.Context(), tx, f.stock, lines, rowlock.NoWait))); err != nil {
				t.Errorf("success: %v", err)
			}
			if got := value[string](f, tx, "SHOW lock_timeout"); got != tc.own {
				t.Errorf("success: lock_timeout is %s, it was %s", got, tc.own)
			}
			_ = tx.Rollback(t.Context())
		}
		holder, tx := f.begin(), begin()
		f.in(holder, "SELECT FROM STOCK FOR UPDATE")
		f.in(tx, "SET LOCAL statement_timeout = 30")
		var pg *pgconn.PgError
		if err := f.lock(t.Context(), tx, "b"); !errors.Is(err, advisory.ErrNotAcquired) || !errors.As(err, &pg) || pg.Code != "57014" {
			t.Errorf("statement_timeout: %v", err)
		}
	})
}

// TestRowThatIsNotInTheSnapshotIsFound: during the wait it is deleted and inserted again, or it moves
// to another partition, which PostgreSQL reports as 40001 at every isolation level.
func TestRowThatIsNotInTheSnapshotIsFound(t *testing.T) {
	t.Parallel()
	bothWays(t, func(t *testing.T, f fixture, begin func() advisory.Tx) {
		t.Helper()
		f.sql("DROP TABLE STOCK")
		f.sql(`CREATE TABLE STOCK ("the sku" text, "qty""left" integer, warehouse integer) PARTITION BY LIST (warehouse)`)
		for _, house := range []string{"1", "2"} {
			f.sql("CREATE TABLE " + f.stock.Name[:1].Sanitize() + ".house" + house + " PARTITION OF STOCK FOR VALUES IN (" + house + ")")
		}
		f.sql(`INSERT INTO STOCK VALUES ('a', 10, 1), ('b', 10, 1), ('c', 10, 1)`)
		for name, change := range map[string][]string{
			"inserted again": {`DELETE FROM STOCK WHERE "the sku" = 'b'`, `INSERT INTO STOCK VALUES ('b', 10, 1)`},
			"moved":          {`UPDATE STOCK SET warehouse = 3 - warehouse WHERE "the sku" = 'b'`},
		} {
			for call, run := range map[string]func(tx advisory.Tx) error{
				"Lock": func(tx advisory.Tx) error { return f.lock(t.Context(), tx, "abc") },
				"Reserve": func(tx advisory.Tx) error {
					left, err := rowlock.Reserve(t.Context(), tx, f.stock, []line{{"b", "10"}, {"a", "3"}})
					if err == nil && (left["a"] != "7" || left["b"] != "0") {
						t.Errorf("left: %v", left)
					}
					return err
				},
			} {
				holder, tx := f.begin(), begin()
				for _, statement := range change {
					f.in(holder, statement)
				}
				done := later(func() error { return run(tx) })
				f.waiting(1)
				ok(t, holder.Commit(t.Context()))
				if err := errors.Join(<-done, tx.Rollback(t.Context())); err != nil {
					t.Errorf("%s, %s: %v", name, call, err)
				}
			}
		}
	})
}

func TestSnapshotTooOldIsTheServersError(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	tx, err := f.pool.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	ok(t, err)
	defer func() { _ = tx.Rollback(context.Background()) }()
	f.in(tx, "SELECT FROM STOCK")
	f.sql(`UPDATE STOCK SET warehouse = 2 WHERE "the sku" = 'a'`)
	var pg *pgconn.PgError
	if err := f.lock(t.Context(), tx, "a"); !errors.As(err, &pg) || pg.Code != "40001" {
		t.Errorf("%v", err)
	}
	if got := f.locked(tx, "b"); got != "b" {
		t.Errorf("another row after it: %q", got)
	}
}

// null is a key that is NULL, and broken one that has no text.
type (
	null   struct{ _ int }
	broken struct{}
)

var errBroken = errors.New("broken")

func (null) Value() (driver.Value, error)   { return nil, nil }
func (broken) MarshalText() ([]byte, error) { return nil, errBroken }

// TestBadInputIsRefusedBeforeAnythingIsSent: the transaction has ended, so that a statement would
// fail with ErrTx.
func TestBadInputIsRefusedBeforeAnythingIsSent(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	tx := f.begin()
	_ = tx.Rollback(t.Context())
	ctx, good := t.Context(), f.stock
	in := func(key string, name ...string) error {
		return second(rowlock.Lock(ctx, tx, rowlock.Table{Name: name, Key: key}, []string{"a"}))
	}
	reserve := func(quantity rowlock.Decimal) error {
		return second(rowlock.Reserve(ctx, tx, good, []line{{"b", "1"}, {"a", quantity}}))
	}
	stock := func(quantity string) error {
		return second(rowlock.Reserve(ctx, tx, rowlock.Stock{Table: good.Table, Quantity: quantity}, []line{{"a", "1"}}))
	}
	for name, err := range map[string]error{
		"NoWait and SkipLocked":    f.lock(ctx, tx, "a", rowlock.NoWait, rowlock.SkipLocked),
		"two strengths":            f.lock(ctx, tx, "a", rowlock.ForShare|rowlock.ForKeyShare),
		"a nil option":             second(rowlock.Reserve(ctx, tx, good, []line{{"a", "1"}}, nil)),
		"SkipLocked to reserve":    second(rowlock.Reserve(ctx, tx, good, []line{{"a", "1"}}, rowlock.SkipLocked)),
		"AllowMissing to restock":  second(rowlock.Restock(ctx, tx, good, []line{{"a", "1"}}, rowlock.AllowMissing)),
		"no key":                   in("", "t"),
		"empty table":              in("k", "s", ""),
		"long table":               in("k", strings.Repeat("x", 64)),
		"long key":                 in(strings.Repeat("x", 64), "t"),
		"NUL in the table":         in("k", "t\x00"),
		"float keys":               second(rowlock.Lock(ctx, tx, good.Table, []float64{1})),
		"key that is a slice":      second(rowlock.Lock(ctx, tx, good.Table, []any{net.IPv4zero})),
		"nil key":                  second(rowlock.Lock(ctx, tx, good.Table, []any{nil})),
		"nil pointer with methods": second(rowlock.Lock(ctx, tx, good.Table, []*netip.Addr{nil})),
		"NULL key":                 second(rowlock.Lock(ctx, tx, good.Table, []null{{}})),
		"broken key":               second(rowlock.Lock(ctx, tx, good.Table, []broken{{}})),
		"quantity 0.00":            reserve("0.00"), "quantity -1": reserve("-1"), "no quantity": reserve(""), "quantity 1e5": reserve("1e5"),
		"quantity NaN": reserve("NaN"), "quantity 1.": reserve("1."), "quantity .5": reserve(".5"), "injection": reserve("1}'; --"),
		"taking less":          second(rowlock.Restock(ctx, tx, good, rowlock.Lines(rowlock.Take("a", -1)))),
		"no quantity column":   stock(""),
		"long quantity column": stock(strings.Repeat("x", 64)),
		"no queue":             second(rowlock.Claim(ctx, tx, pgx.RowTo[int], "", "SELECT 1")),
	} {
		if !errors.Is(err, advisory.ErrInvalidOption) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestUnusableTransactionIsErrTx(t *testing.T) {
	t.Parallel()
	bothWays(t, func(t *testing.T, f fixture, begin func() advisory.Tx) {
		t.Helper()
		committed, aborted, rolledBack := begin(), begin(), begin()
		_ = committed.Commit(t.Context())
		_ = rolledBack.Rollback(t.Context())
		_, _ = aborted.Exec(t.Context(), "nonsense")
		var none *pgxpool.Tx
		for name, call := range everyCall(f) {
			for state, tx := range map[string]advisory.Tx{
				"committed": committed, "aborted": aborted, "rolled back": rolledBack, "nil": nil, "nil pointer": none,
				"sqltx of nil": sqltx.Wrap(nil), "nil sqltx": (*sqltx.Tx)(nil),
			} {
				if err := call(t.Context(), tx); !errors.Is(err, advisory.ErrTx) {
					t.Errorf("%s, %s: %v", name, state, err)
				}
			}
		}
	})
}

// TestServersErrorsLeaveTheTransactionUsable, with the server's own words.
func TestServersErrorsLeaveTheTransactionUsable(t *testing.T) {
	t.Parallel()
	bothWays(t, func(t *testing.T, f fixture, begin func() advisory.Tx) {
		t.Helper()
		ctx, tx := t.Context(), begin()
		in := func(key string, name ...string) error {
			return second(rowlock.Lock(ctx, tx, rowlock.Table{Name: name, Key: key}, []string{"a"}))
		}
		for code, err := range map[string]error{
			"42P01": in("k", `pg_class"; --`),
			"42703": in("nay", f.stock.Name...),
			"42601": second(f.claim(ctx, tx, "LIMIT 1 LIMIT 1")),
			"42P18": second(f.claim(ctx, tx, "WHERE warehouse = $7")),
			"0A000": second(f.claim(ctx, tx, "GROUP BY 1")),
		} {
			var pg *pgconn.PgError
			if !errors.As(err, &pg) || pg.Code != code || !strings.Contains(err.Error(), "rowlock: ") {
				t.Errorf("%s: %v", code, err)
			}
		}
		f.usable(tx, "0")
	})
}

func TestMissingPrivilege(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	role := pgx.Identifier{"reader of " + f.stock.Name[0]}.Sanitize()
	f.sql("CREATE ROLE " + role)
	t.Cleanup(func() { _, _ = f.pool.Exec(context.Background(), "DROP OWNED BY "+role+"; DROP ROLE "+role) })
	f.sql("GRANT USAGE ON SCHEMA " + f.stock.Name[:1].Sanitize() + " TO " + role)
	f.sql("GRANT SELECT ON STOCK TO " + role)
	tx := f.begin()
	f.in(tx, "SET LOCAL ROLE "+role)
	for name, call := range everyCall(f) {
		if err := call(t.Context(), tx); !errors.Is(err, pglock.ErrPrivilege) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
