package rowlock_test

import (
	"context"
	"database/sql/driver"
	"errors"
	"net"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/pglock/rowlock"
	"github.com/pglock/pglock-go/pglock/sqltx"
)

// TestBadInputIsRefusedBeforeAnythingIsSent: the transaction has ended, so that a statement would
// fail with ErrTx.
func TestBadInputIsRefusedBeforeAnythingIsSent(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	tx := f.begin()
	_ = tx.Rollback(t.Context())
	ctx, good := t.Context(), f.stock
	lock := func(table rowlock.Table, opts ...rowlock.LockOption) error {
		return second(rowlock.ForUpdate[item](ctx, tx, table, []string{"a"}, opts...))
	}
	reserve := func(stock rowlock.Stock, lines ...line) error { return second(rowlock.Reserve(ctx, tx, stock, lines)) }
	restock := func(stock rowlock.Stock, lines ...line) error { return second(rowlock.Restock(ctx, tx, stock, lines)) }
	claim := func(limit int, opts ...rowlock.ClaimOption) error {
		return second(rowlock.Claim[item](ctx, tx, good.Table, limit, opts...))
	}
	part := func(d rowlock.Decimal) error {
		return second(rowlock.Reserve(ctx, tx, good, []rowlock.Line[string, rowlock.Decimal]{{"a", d}}))
	}
	table := func(key string, name ...string) rowlock.Table { return rowlock.Table{Name: name, Key: key} }
	stock := func(quantity string) rowlock.Stock { return rowlock.Stock{Table: good.Table, Quantity: quantity} }
	long := strings.Repeat("x", 64)
	for name, err := range map[string]error{
		"timeout of zero":        lock(good.Table, rowlock.WithTimeout(0)),
		"negative timeout":       lock(good.Table, rowlock.WithTimeout(-time.Second)),
		"NoWait and SkipLocked":  lock(good.Table, rowlock.NoWait(), rowlock.SkipLocked()),
		"NoWait and timeout":     lock(good.Table, rowlock.NoWait(), rowlock.WithTimeout(1)),
		"SkipLocked and timeout": lock(good.Table, rowlock.SkipLocked(), rowlock.WithTimeout(1)),
		"empty condition":        lock(good.Table, rowlock.Where("", rowlock.Equal, 1)),
		"unknown comparison":     lock(good.Table, rowlock.Where("warehouse", "= 1 OR 1 =", 1)),
		"more than NULL":         lock(good.Table, rowlock.Where("warehouse", rowlock.Greater, nil)),
		"no table":               lock(rowlock.Table{Key: "k"}),
		"no key":                 lock(table("", "t")),
		"empty table":            lock(table("k", "s", "")),
		"four parts":             lock(table("k", "a", "b", "c", "d")),
		"long table":             lock(table("k", long)),
		"long key":               lock(table(long, "t")),
		"NUL in the table":       lock(table("k", "t\x00")),
		"not UTF-8":              lock(table("k\xff", "t")),
		"key twice":              second(rowlock.ForUpdate[item](ctx, tx, good.Table, []string{"a", "b", "a"})),
		"NUL in a key":           second(rowlock.ForUpdate[item](ctx, tx, good.Table, []string{"\x00"})),
		"key not UTF-8":          second(rowlock.ForUpdate[item](ctx, tx, good.Table, []string{"\xff"})),
		"float keys":             second(rowlock.ForUpdate[item](ctx, tx, good.Table, []float64{1})),
		"key that is a slice":    second(rowlock.ForUpdate[item](ctx, tx, good.Table, []any{net.IPv4zero})),
		"nil key":                second(rowlock.ForUpdate[item](ctx, tx, good.Table, []any{nil})),
		"NULL key":               second(rowlock.ForUpdate[item](ctx, tx, good.Table, []nullable{{}})),
		"broken key":             second(rowlock.ForUpdate[item](ctx, tx, good.Table, []broken{{}})),
		"rows of int":            second(rowlock.ForUpdate[int](ctx, tx, good.Table, []string{"a"})),
		"rows of *item":          second(rowlock.ForShare[*item](ctx, tx, good.Table, []string{"a"})),
		"rows without fields":    second(rowlock.ForKeyShare[struct{}](ctx, tx, good.Table, []string{"a"})),
		"rows with a field twice": second(rowlock.ForUpdate[struct {
			A int `db:"the sku"`
			B int `db:"the sku"`
		}](ctx, tx, good.Table, []string{"a"})),
		"rows with an empty tag": second(rowlock.ForUpdate[struct {
			A int `db:""`
		}](ctx, tx, good.Table, []string{"a"})),
		"quantity 0":              reserve(good, line{"a", 0}),
		"negative quantity":       reserve(good, line{"b", 1}, line{"a", -1}),
		"restock of 0":            restock(good, line{"a", 0}),
		"restock of less":         restock(good, line{"a", -1}),
		"line twice":              reserve(good, line{"a", 1}, line{"b", 1}, line{"a", 1}),
		"restock twice":           restock(good, line{"a", 1}, line{"a", 1}),
		"no quantity column":      reserve(stock(""), line{"a", 1}),
		"long quantity column":    reserve(stock(long), line{"a", 1}),
		"quantity is the key":     reserve(stock("the sku"), line{"a", 1}),
		"no table to reserve":     reserve(rowlock.Stock{Quantity: "q"}, line{"a", 1}),
		"reserve with timeout 0":  second(rowlock.Reserve(ctx, tx, good, []line{{"a", 1}}, rowlock.WithTimeout(0))),
		"reserve NoWait, timeout": second(rowlock.Reserve(ctx, tx, good, []line{{"a", 1}}, rowlock.WithTimeout(1), rowlock.NoWait())),
		"decimal 0.00":            part("0.00"), "decimal -1": part("-1"), "decimal empty": part(""), "decimal 1e5": part("1e5"),
		"decimal NaN": part("NaN"), "decimal point": part("1."), "decimal .5": part(".5"), "decimal injection": part("1}'; --"),
		"long decimal":     part(rowlock.Decimal(strings.Repeat("9", 1001))),
		"claim none":       claim(0),
		"claim less":       claim(-1),
		"claim by nothing": claim(1, rowlock.OrderBy("")),
		"claim due never":  claim(1, rowlock.Due("")),
		"claim of int":     second(rowlock.Claim[int](ctx, tx, good.Table, 1)),
		"claim no table":   second(rowlock.Claim[item](ctx, tx, rowlock.Table{}, 1)),
	} {
		if !errors.Is(err, rowlock.ErrInvalidOption) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestOptionsFitTheirCalls: the compiler refuses an option that a call does not have.
func TestOptionsFitTheirCalls(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		option             any
		lock, claim, stock bool
	}{
		"WithTimeout":       {rowlock.WithTimeout(1), true, true, true},
		"NoWait":            {rowlock.NoWait(), true, true, true},
		"Where":             {rowlock.Where("c", rowlock.Equal, 1), true, true, true},
		"SkipLocked":        {rowlock.SkipLocked(), true, false, false},
		"AllowMissing":      {rowlock.AllowMissing(), true, false, false},
		"Due":               {rowlock.Due("c"), false, true, false},
		"OrderBy":           {rowlock.OrderBy("c"), false, true, false},
		"OrderByDescending": {rowlock.OrderByDescending("c"), false, true, false},
	} {
		_, lock := tc.option.(rowlock.LockOption)
		_, claim := tc.option.(rowlock.ClaimOption)
		_, stock := tc.option.(rowlock.Option)
		if lock != tc.lock || claim != tc.claim || stock != tc.stock {
			t.Errorf("%s: for locks %v, for claims %v, for stocks %v", name, lock, claim, stock)
		}
	}
}

// nullable is a key that may be NULL.
type nullable struct{ _ int }

func (nullable) Value() (driver.Value, error) { return nil, nil }

type broken struct{}

var errBroken = errors.New("broken")

func (broken) MarshalText() ([]byte, error) { return nil, errBroken }

// everyCall returns a simple call of each function.
func everyCall(f fixture) map[string]func(context.Context, rowlock.Tx) error {
	return map[string]func(context.Context, rowlock.Tx) error{
		"ForUpdate": func(ctx context.Context, tx rowlock.Tx) error {
			return second(rowlock.ForUpdate[item](ctx, tx, f.stock.Table, []string{"c", "b"}))
		},
		"ForUpdate, missing": func(ctx context.Context, tx rowlock.Tx) error {
			return second(rowlock.ForUpdate[item](ctx, tx, f.stock.Table, []string{"c", "x"}))
		},
		"ForNoKeyUpdate with timeout": func(ctx context.Context, tx rowlock.Tx) error {
			return second(rowlock.ForNoKeyUpdate[item](ctx, tx, f.stock.Table, []string{"c"}, rowlock.WithTimeout(time.Minute)))
		},
		"ForShare": func(ctx context.Context, tx rowlock.Tx) error {
			return second(rowlock.ForShare[item](ctx, tx, f.stock.Table, []string{"c"}))
		},
		"ForKeyShare": func(ctx context.Context, tx rowlock.Tx) error {
			return second(rowlock.ForKeyShare[item](ctx, tx, f.stock.Table, []string{"c"}))
		},
		"ForUpdate, NoWait": func(ctx context.Context, tx rowlock.Tx) error {
			return second(rowlock.ForUpdate[item](ctx, tx, f.stock.Table, []string{"c"}, rowlock.NoWait()))
		},
		"Reserve": func(ctx context.Context, tx rowlock.Tx) error {
			return second(rowlock.Reserve(ctx, tx, f.stock, []line{{"c", 1}}))
		},
		"Reserve, short": func(ctx context.Context, tx rowlock.Tx) error {
			return second(rowlock.Reserve(ctx, tx, f.stock, []line{{"c", 99}, {"x", 1}}))
		},
		"Restock": func(ctx context.Context, tx rowlock.Tx) error {
			return second(rowlock.Restock(ctx, tx, f.stock, []line{{"c", 1}}))
		},
		"Claim": func(ctx context.Context, tx rowlock.Tx) error {
			return second(rowlock.Claim[item](ctx, tx, f.stock.Table, 2))
		},
	}
}

func TestUnusableTransactionIsErrTx(t *testing.T) {
	t.Parallel()
	bothWays(t, func(t *testing.T, f fixture, begin func() rowlock.Tx) {
		t.Helper()
		committed, aborted, rolledBack := begin(), begin(), begin()
		_ = committed.Commit(t.Context())
		_ = rolledBack.Rollback(t.Context())
		_, _ = aborted.Exec(t.Context(), "nonsense")
		var none *pgxpool.Tx
		for name, call := range everyCall(f) {
			for state, tx := range map[string]rowlock.Tx{
				"committed": committed, "aborted": aborted, "rolled back": rolledBack, "nil": nil, "nil pointer": none,
				"sqltx of nil": sqltx.Wrap(nil), "nil sqltx": (*sqltx.Tx)(nil),
			} {
				if err := call(t.Context(), tx); !errors.Is(err, rowlock.ErrTx) {
					t.Errorf("%s, %s: %v", name, state, err)
				}
			}
		}
	})
}

func TestUnknownTableOrColumnIsNamed(t *testing.T) {
	t.Parallel()
	bothWays(t, func(t *testing.T, f fixture, begin func() rowlock.Tx) {
		t.Helper()
		ctx, tx, good := t.Context(), begin(), f.stock
		elsewhere := func(name ...string) rowlock.Table { return rowlock.Table{Name: name, Key: "the sku"} }
		type wider struct {
			item
			NoSuch, NorThis int
		}
		for name, tc := range map[string]struct {
			err     error
			columns []string
		}{
			"table":           {second(rowlock.ForUpdate[item](ctx, tx, elsewhere("no such"), []string{"a"})), nil},
			"schema":          {second(rowlock.ForUpdate[item](ctx, tx, elsewhere("no such", "t"), []string{"a"})), nil},
			"injection":       {second(rowlock.ForUpdate[item](ctx, tx, elsewhere(`pg_class"; --`), []string{"a"})), nil},
			"columns":         {second(rowlock.ForUpdate[wider](ctx, tx, good.Table, []string{"a"})), []string{"no_such", "nor_this"}},
			"key":             {second(rowlock.Claim[item](ctx, tx, rowlock.Table{Name: good.Name, Key: "nay"}, 1)), []string{"nay"}},
			"condition":       {second(rowlock.Claim[item](ctx, tx, good.Table, 1, rowlock.Where("cond", rowlock.Equal, 1))), []string{"cond"}},
			"order":           {second(rowlock.Claim[item](ctx, tx, good.Table, 1, rowlock.OrderBy("ord"))), []string{"ord"}},
			"quantity":        {second(rowlock.Reserve(ctx, tx, rowlock.Stock{Table: good.Table, Quantity: "many"}, []line{{"a", 1}})), []string{"many"}},
			"reserve's table": {second(rowlock.Reserve(ctx, tx, rowlock.Stock{Table: elsewhere("x"), Quantity: "q"}, []line{{"a", 1}})), nil},
		} {
			var table *rowlock.TableError
			if !errors.As(tc.err, &table) || !errors.Is(tc.err, rowlock.ErrTable) || !reflect.DeepEqual(table.Columns, tc.columns) || table.Table == "" {
				t.Errorf("%s: %v", name, tc.err)
			}
		}
		f.usable(tx, "0")
	})
}

// TestNameWithADotHasAHint: a dot is a legal part of a name, so the hint comes only if there is no
// such table or column.
func TestNameWithADotHasAHint(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	tx := f.begin()
	f.in(tx, `CREATE TEMP TABLE "dot.ted" ("a.b" text PRIMARY KEY, q int) ON COMMIT DROP`)
	f.in(tx, `INSERT INTO "dot.ted" VALUES ('x', 3)`)
	named := func(name ...string) rowlock.Stock {
		return rowlock.Stock{Table: rowlock.Table{Name: name, Key: "a.b"}, Quantity: "q"}
	}
	reserve := func(stock rowlock.Stock) error {
		return second(rowlock.Reserve(t.Context(), tx, stock, rowlock.Lines(rowlock.Take("x", 1))))
	}
	if err := reserve(named("dot.ted")); err != nil {
		t.Errorf("a table that is named so: %v", err)
	}
	for name, tc := range map[string]struct {
		err  error
		hint string
	}{
		"schema and table": {reserve(named("public.stock")), `write pgx.Identifier{"public", "stock"}`},
		"two and one":      {reserve(named("db.public", "stock")), `write pgx.Identifier{"db", "public", "stock"}`},
		"no dot":           {reserve(named("nowhere")), ""},
		"column":           {reserve(rowlock.Stock{Table: named("dot.ted").Table, Quantity: "dot.ted.q"}), `write "q", without the table`},
		"column, no dot":   {reserve(rowlock.Stock{Table: named("dot.ted").Table, Quantity: "none"}), ""},
	} {
		var table *rowlock.TableError
		if !errors.As(tc.err, &table) || !strings.Contains(table.Hint, tc.hint) || (table.Hint == "") != (tc.hint == "") || !strings.Contains(tc.err.Error(), table.Hint) {
			t.Errorf("%s: %v", name, tc.err)
		}
	}
	f.usable(tx, "0")
}

func TestKeysThatDoNotFitTheColumn(t *testing.T) {
	t.Parallel()
	bothWays(t, func(t *testing.T, f fixture, begin func() rowlock.Tx) {
		t.Helper()
		tx := begin()
		byNumber := rowlock.Table{Name: f.stock.Name, Key: "warehouse"}
		type row struct{ Warehouse int }
		inA := rowlock.Where("the sku", rowlock.Equal, "a")
		if _, err := rowlock.ForUpdate[row](t.Context(), tx, byNumber, []string{"seven"}); !errors.Is(err, rowlock.ErrInvalidOption) {
			t.Errorf("a word for a number: %v", err)
		}
		if _, err := rowlock.ForUpdate[row](t.Context(), tx, byNumber, []int64{1 << 40}); !errors.Is(err, rowlock.ErrRange) {
			t.Errorf("a number that is too large: %v", err)
		}
		if _, err := rowlock.ForUpdate[row](t.Context(), tx, byNumber, []string{"1", "01"}, inA); !errors.Is(err, rowlock.ErrInvalidOption) {
			t.Errorf("a number in two forms: %v", err)
		}
		if _, err := rowlock.Reserve(t.Context(), tx, rowlock.Stock{Table: byNumber, Quantity: f.stock.Quantity}, []line{{"1", 1}, {"01", 1}}, inA); !errors.Is(err, rowlock.ErrInvalidOption) {
			t.Errorf("a line in two forms: %v", err)
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
		if err := call(t.Context(), tx); !errors.Is(err, rowlock.ErrPrivilege) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
