package rowlock_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/advisory"
	"github.com/pglock/pglock-go/internal/locktest"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/pglock/rowlock"
)

// scale is the size of the experiment.
type scale struct {
	workers, skus, orders, pieces int
}

func scaled() scale {
	if os.Getenv("PGLOCK_CHAOS") != "" {
		return scale{workers: 64, skus: 50, orders: 20_000, pieces: 1_300}
	}
	return scale{workers: 12, skus: 8, orders: 200, pieces: 70}
}

// One of this many orders terminates its own backend, at one of several points.
const killOneOf, points = 4, 5

// inventory is a stock without a constraint against negative quantities, and a table of the
// reservations, which the same transactions write.
type inventory struct {
	*testing.T
	scale

	watch        *pgxpool.Pool // its backends are never terminated
	pool         *pgxpool.Pool // used by the workers
	stock        rowlock.Stock
	lines        string // the table of reservations
	reserved     atomic.Int64
	short        atomic.Int64
	ended, fates atomic.Int64 // transactions that lost their connection; those of them that had committed
}

func newInventory(t *testing.T, s scale) *inventory {
	t.Helper()
	in := pgtest.SchemaName(t)
	v := &inventory{
		T: t, scale: s, watch: pgtest.Pool(t),
		pool: pgtest.Pool(t, func(c *pgxpool.Config) {
			c.MaxConns = int32(s.workers)
		}),
		stock: rowlock.Stock{Table: rowlock.Table{Name: pgx.Identifier{in, "stock"}, Key: "sku"}, Quantity: "qty"},
		lines: pgx.Identifier{in, "lines"}.Sanitize(),
	}
	for _, sql := range []string{
		"CREATE SCHEMA " + pgx.Identifier{in}.Sanitize(),
		"CREATE TABLE " + v.stock.Name.Sanitize() + " (sku int PRIMARY KEY, qty int NOT NULL) WITH (fillfactor = 50)",
		"CREATE TABLE " + v.lines + " (id int, sku int, qty int NOT NULL, PRIMARY KEY (id, sku))",
		fmt.Sprintf("INSERT INTO %s SELECT n, %d FROM generate_series(1, %d) n", v.stock.Name.Sanitize(), s.pieces, s.skus),
	} {
		locktest.Exec(t, v.watch, sql)
	}
	return v
}

func (v *inventory) number(sql string, args ...any) (n int64) {
	v.Helper()
	if err := v.watch.QueryRow(v.Context(), sql, args...).Scan(&n); err != nil {
		v.Errorf("%s: %v", sql, err) // workers call it
	}
	return n
}

// TestChaosInventory: many workers reserve stock while backends are terminated at several points of
// a transaction, also during the commit. The stock is never negative, and the reservations add up to what
// has left it.
func TestChaosInventory(t *testing.T) {
	t.Parallel()
	v := newInventory(t, scaled())
	begun := time.Now()
	var workers sync.WaitGroup
	var next atomic.Int64
	for range v.workers {
		workers.Go(func() {
			for id := next.Add(1); id <= int64(v.orders) && !t.Failed(); id = next.Add(1) {
				v.order(int(id))
			}
		})
	}
	workers.Wait()
	took := time.Since(begun)

	left, sold := v.number("SELECT sum(qty) FROM "+v.stock.Name.Sanitize()), v.number("SELECT sum(qty) FROM "+v.lines)
	t.Logf("%d workers, %d SKUs, %d orders in %v: %d reserved, %d short; %d pieces at the start, %d sold, %d left; "+
		"%d transactions cut off, of which %d were committed", v.workers, v.skus, v.orders,
		took.Round(time.Millisecond), v.reserved.Load(), v.short.Load(), v.skus*v.pieces, sold, left, v.ended.Load(), v.fates.Load())
	if wrong := v.number(fmt.Sprintf(`SELECT count(*) FROM %s s LEFT JOIN (SELECT sku, sum(qty) AS sold FROM %s GROUP BY sku) l USING (sku)
		WHERE s.qty < 0 OR s.qty + coalesce(l.sold, 0) <> %d`, v.stock.Name.Sanitize(), v.lines, v.pieces)); wrong != 0 {
		t.Errorf("%d SKUs do not add up", wrong)
	}
	if written := v.number("SELECT count(DISTINCT id) FROM " + v.lines); written != v.reserved.Load() || written+v.short.Load() != int64(v.orders) {
		t.Errorf("%d orders are written, %d were told so, %d were short, of %d", written, v.reserved.Load(), v.short.Load(), v.orders)
	}
	if v.short.Load() == 0 || v.ended.Load() == 0 {
		t.Error("nothing was short, or nothing was cut off: this shows nothing")
	}
	pgtest.Eventually(t, "no row is locked", func() bool {
		return v.number("SELECT count(*) FROM pg_locks WHERE relation = $1::text::regclass AND pid <> pg_backend_pid()", v.stock.Name.Sanitize()) == 0
	})
}

// order makes one reservation, and repeats a transaction that was cut off before it committed.
func (v *inventory) order(id int) {
	dice := rand.New(rand.NewPCG(uint64(id), 3)) // deterministic
	var lines []rowlock.Line[int]
	for _, sku := range dice.Perm(v.skus)[:1+dice.IntN(3)] {
		lines = append(lines, rowlock.Take(sku+1, 1+dice.IntN(3)))
	}
	fate := -1
	if id%killOneOf == 0 {
		fate = id / killOneOf % points
	}
	for ; !v.Failed(); fate = -1 {
		err := pgx.BeginFunc(v.Context(), v.pool, func(tx pgx.Tx) error { return v.reserve(tx, id, lines, fate) })
		switch {
		case err == nil:
			v.reserved.Add(1)
			return
		case errors.Is(err, rowlock.ErrShort):
			v.short.Add(1)
			return
		case errors.Is(err, advisory.ErrDeadlock), errors.Is(err, rowlock.ErrMissing), errors.Is(err, advisory.ErrInvalidOption), errors.Is(err, context.Canceled):
			v.Errorf("order %d: %v", id, err)
			return
		}
		v.ended.Add(1)
		// The commit's answer was lost.
		if v.number("SELECT count(*) FROM "+v.lines+" WHERE id = $1", id) > 0 {
			v.fates.Add(1)
			v.reserved.Add(1)
			return
		}
	}
}

// reserve is one transaction. If fate is one of its points, it terminates its own backend there.
func (v *inventory) reserve(tx pgx.Tx, id int, lines []rowlock.Line[int], fate int) error {
	left, err := rowlock.Reserve(v.Context(), tx, v.stock, lines)
	if err != nil {
		return err
	}
	for _, l := range left {
		if n, err := strconv.Atoi(string(l)); err != nil || n < 0 {
			v.Errorf("order %d got the result that %s are left: %v", id, l, err)
		}
	}
	for point, l := range lines {
		if point == fate {
			_, err := tx.Exec(v.Context(), "SELECT pg_terminate_backend(pg_backend_pid())")
			return err
		}
		if _, err := tx.Exec(v.Context(), "INSERT INTO "+v.lines+" VALUES ($1, $2, $3)", id, l.Key, string(l.Quantity)); err != nil {
			return err
		}
	}
	if fate == len(lines) {
		go func() { // during the commit, or just before or after it
			_, _ = v.watch.Exec(v.Context(), "SELECT pg_terminate_backend($1)", tx.Conn().PgConn().PID())
		}()
	}
	return nil
}

// TestInventoryControl does the same without FOR UPDATE: all workers read the last piece, and all
// sell it. If they write the new stock, the reservations do not add up; if they decrement it, it is
// negative.
func TestInventoryControl(t *testing.T) {
	t.Parallel()
	for name, write := range map[string]string{"written": "SET qty = $2", "counted down": "SET qty = qty - 1 + 0 * $2::int"} {
		const buyers = 5
		v := newInventory(t, scale{workers: buyers, skus: 1, pieces: 1})
		var read, all sync.WaitGroup
		read.Add(buyers)
		for id := range buyers {
			all.Go(func() {
				met := sync.OnceFunc(func() { read.Done(); read.Wait() })
				defer met()
				err := pgx.BeginFunc(t.Context(), v.pool, func(tx pgx.Tx) error {
					var qty int
					if err := tx.QueryRow(t.Context(), "SELECT qty FROM "+v.stock.Name.Sanitize()+" WHERE sku = 1").Scan(&qty); err != nil || qty < 1 {
						return err
					}
					met() // all have read
					if _, err := tx.Exec(t.Context(), "UPDATE "+v.stock.Name.Sanitize()+" "+write+" WHERE sku = $1", 1, qty-1); err != nil {
						return err
					}
					_, err := tx.Exec(t.Context(), "INSERT INTO "+v.lines+" VALUES ($1, 1, 1)", id)
					return err
				})
				if err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		left, sold := v.number("SELECT qty FROM "+v.stock.Name.Sanitize()), v.number("SELECT sum(qty) FROM "+v.lines)
		want := map[string]int64{"written": 0, "counted down": 1 - buyers}[name]
		if left != want || sold != buyers {
			t.Errorf("%s: %d sold of 1, %d left: it did not oversell, so the experiment shows nothing", name, sold, left)
		}
	}
}
