package adapters_test

import (
	"context"
	"database/sql"
	"errors"
	"log"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jmoiron/sqlx"
	_ "github.com/lib/pq" // another driver, as "postgres"

	"github.com/pglock/pglock-go/advisory"
	"github.com/pglock/pglock-go/fencing"
	"github.com/pglock/pglock-go/internal/errs"
	"github.com/pglock/pglock-go/internal/locktest"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/migrations"
	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/rowlock"
	"github.com/pglock/pglock-go/pglock/sqltx"
)

// guard is the method Guard of a lease, or Bind for a protected table.
type guard = func(ctx context.Context, tx fencing.Tx) error

// unguarded is the guard of the controls.
func unguarded(context.Context, fencing.Tx) error { return nil }

var accountTable = []string{"CREATE TABLE accounts (id text PRIMARY KEY, balance integer NOT NULL)", "INSERT INTO accounts VALUES ('17', 100)"}

// bank returns a *sql.DB with one account, and a client, for an example.
func bank(ctx context.Context) (db *sql.DB, client *pglock.Client, end func()) {
	pool, drop := locktest.ExamplePool(accountTable...)
	db = must(sql.Open("pgx", pool.Config().ConnString()))
	client = must(pglock.OpenDB(ctx, db))
	return db, client, func() {
		_ = client.Close(ctx) // a lease was lost
		_ = db.Close()
		drop()
	}
}

// balance returns the balance of the account.
func balance(ctx context.Context, db *sql.DB) (n int) {
	if err := db.QueryRowContext(ctx, "SELECT balance FROM accounts").Scan(&n); err != nil {
		log.Fatal(err)
	}
	return n
}

// overtaken returns the lease of a holder that does not know that its lease has expired and that its
// lock was granted to another holder, as after a pause of the process. next is the other's lease.
func overtaken(ctx context.Context, client *pglock.Client, db *sql.DB) (stale, next *pglock.Lease) {
	stale = must(client.Acquire(ctx, "account:17", pglock.WithTTL(time.Hour), pglock.WithRenewEvery(0)))
	must(db.ExecContext(ctx, "UPDATE pglock.distributed_locks SET expires_at = clock_timestamp()"))
	next = must(client.Acquire(ctx, "account:17"))
	return stale, next
}

// withdrawal withdraws an amount in one transaction.
type withdrawal func(ctx context.Context, g guard, amount int) error

// libraries returns the withdrawal by each library.
var libraries = map[string]func(db *sql.DB) withdrawal{
	"gorm": func(db *sql.DB) withdrawal {
		orm := openGORM(db, false)
		return func(ctx context.Context, g guard, n int) error { return withdrawGORM(ctx, orm, g, "17", n) }
	},
	"gorm prepared": func(db *sql.DB) withdrawal {
		orm := openGORM(db, true)
		return func(ctx context.Context, g guard, n int) error { return withdrawGORM(ctx, orm, g, "17", n) }
	},
	"sqlx": func(db *sql.DB) withdrawal {
		named := sqlx.NewDb(db, "pgx")
		return func(ctx context.Context, g guard, n int) error { return withdrawSqlx(ctx, named, g, "17", n) }
	},
	"sqlc": func(db *sql.DB) withdrawal {
		return func(ctx context.Context, g guard, n int) error { return withdrawSqlc(ctx, db, g, "17", int32(n)) }
	},
	"ent": func(db *sql.DB) withdrawal {
		orm := openEnt(db)
		return func(ctx context.Context, g guard, n int) error { return withdrawEnt(ctx, orm, g, "17", n) }
	},
}

// TestLibrariesRefuseAStaleHolder: by Guard, and by Bind in a protected table. The controls write
// without them.
func TestLibrariesRefuseAStaleHolder(t *testing.T) {
	t.Parallel()
	for name, library := range libraries {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, url := t.Context(), pgtest.Database(t)
			db := openDB(t, url)
			pool := pgtest.PoolOn(t, url)
			for _, sql := range accountTable {
				locktest.Exec(t, pool, sql)
			}
			client := locktest.Client(t, url)
			withdraw := library(db)
			left := 100
			check := func(what string, g guard, want error) {
				t.Helper()
				err := fencing.Explain(withdraw(ctx, g, 1))
				if want == nil {
					left--
				}
				if n := balance(ctx, db); !errors.Is(err, want) || n != left {
					t.Errorf("%s: %v; balance %d, want %d", what, err, n, left)
				}
			}
			stale, next := overtaken(ctx, client, db)
			check("the holder's guard", next.Guard, nil)
			check("a stale guard", stale.Guard, pglock.ErrStale)
			check("control without a guard", unguarded, nil)

			if err := fencing.Protect(ctx, pool, "accounts", fencing.NamedBy("account:{id}")); err != nil {
				t.Fatal(err)
			}
			withdraw = library(openDB(t, url)) // the cached statements of the other connections lack the token column
			check("a protected table without a grant", unguarded, fencing.ErrUnfenced)
			check("a guard does not bind", next.Guard, fencing.ErrUnfenced)
			check("a stale grant", stale.Bind, pglock.ErrStale)
			check("the holder's grant", next.Bind, nil)
		})
	}
}

// TestLibrariesLockTheRow: the goroutines of one holder share its lease, and the row lock keeps them
// apart. The control reads without it, and loses updates.
func TestLibrariesLockTheRow(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	db, pool := openDB(t, url), pgtest.PoolOn(t, url)
	for _, sql := range accountTable {
		locktest.Exec(t, pool, sql)
	}
	l, err := locktest.Client(t, url).Acquire(t.Context(), "account:17")
	if err != nil {
		t.Fatal(err)
	}
	left := 100
	const workers = 4
	var all sync.WaitGroup
	for name, library := range libraries {
		withdraw := library(db)
		for range workers {
			all.Go(func() {
				for range 3 {
					if err := withdraw(t.Context(), l.Guard, 1); err != nil {
						t.Errorf("%s: %v", name, err)
					}
				}
			})
		}
		all.Wait()
		if left -= 3 * workers; balance(t.Context(), db) != left {
			t.Errorf("%s: balance %d, want %d", name, balance(t.Context(), db), left)
			left = balance(t.Context(), db)
		}
	}
	var read sync.WaitGroup
	read.Add(2)
	for range 2 {
		all.Go(func() {
			met := sync.OnceFunc(func() { read.Done(); read.Wait() })
			defer met()
			n := balance(t.Context(), db)
			met() // both have read
			if _, err := db.ExecContext(t.Context(), "UPDATE accounts SET balance = $1", n-1); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if n := balance(t.Context(), db); n != left-1 {
		t.Errorf("control: balance %d: without the row lock an update should be lost", n)
	}
}

// TestTransactionsOfLibraries: Wrap takes those of sqlx and ent as they are, and gormTx finds that
// of GORM. Outside a transaction nothing is sent.
func TestTransactionsOfLibraries(t *testing.T) {
	t.Parallel()
	db := openDB(t, pgtest.URL(t))
	var _ sqltx.SQLTx = (*sql.Tx)(nil)
	for name, prepare := range map[string]bool{"plain": false, "prepared": true} {
		if err := advisory.Lock(t.Context(), gormTx(openGORM(db, prepare)), advisory.NewKey("orm", t.Name())); !errors.Is(err, advisory.ErrTx) {
			t.Errorf("%s, outside a transaction: %v", name, err)
		}
	}
	stock := rowlock.Stock{Table: rowlock.Table{Name: []string{"kept"}, Key: "id"}, Quantity: "n"}
	tx, err := beginEnt(t.Context(), openEnt(db))
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback() //nolint:errcheck // this is the only end of the transaction
	if _, err := tx.ExecContext(t.Context(), "CREATE TEMP TABLE kept ON COMMIT DROP AS SELECT 'a' AS id, 5 AS n"); err != nil {
		t.Fatal(err)
	}
	left, err := rowlock.Reserve(t.Context(), sqltx.Wrap(tx), stock, rowlock.Lines(rowlock.Take("a", 2)))
	if err != nil || left["a"] != "3" {
		t.Errorf("Reserve in a transaction of ent: %v, %v", left, err)
	}
	if err := advisory.Lock(t.Context(), sqltx.Wrap(tx), advisory.NewKey("orm", t.Name()), advisory.WithTimeout(time.Minute)); err != nil {
		t.Error(err)
	}
}

// TestOtherDriversAreRefused: lib/pq gets an error that says what to do.
func TestOtherDriversAreRefused(t *testing.T) {
	t.Parallel()
	url := pgtest.URL(t)
	pq, err := sql.Open("postgres", url+sslOff(url))
	if err != nil {
		t.Fatal(err)
	}
	defer pq.Close()
	if err := pq.PingContext(t.Context()); err != nil {
		t.Fatal(err)
	}
	tx, err := pq.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback() //nolint:errcheck // this is the only end of the transaction
	_, openErr := pglock.OpenDB(t.Context(), pq)
	for name, err := range map[string]error{
		"OpenDB": openErr,
		"UpDB":   migrations.UpDB(t.Context(), pq),
		"Lock":   advisory.Lock(t.Context(), sqltx.Wrap(tx), advisory.NewKey("orm", t.Name())),
		"DoDB": advisory.DoDB(t.Context(), pq, advisory.NewKey("orm", t.Name()), func(context.Context, pgx.Tx) error {
			t.Error("the function ran")
			return nil
		}),
	} {
		if !errors.Is(err, errs.ErrDriver) || !strings.Contains(err.Error(), `sql.Open("pgx", url)`) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// sslOff returns what lib/pq needs for a server without TLS, as a suffix of the URL.
func sslOff(url string) string {
	if strings.Contains(url, "sslmode=") {
		return ""
	}
	if strings.Contains(url, "?") {
		return "&sslmode=disable"
	}
	return "?sslmode=disable"
}

// TestSqltxShowsTheRecipe: the code in the doc.go of sqltx is that of gormTx.
func TestSqltxShowsTheRecipe(t *testing.T) {
	t.Parallel()
	source, err := os.ReadFile("orm_gorm_test.go")
	if err != nil {
		t.Fatal(err)
	}
	doc, err := os.ReadFile("../../pglock/sqltx/doc.go")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(source), "func gormTx(")
	body, _, found := strings.Cut(rest, "\n}\n")
	if text := strings.ReplaceAll(string(doc), "\n//\t", "\n"); !found || !strings.Contains(text, body) {
		t.Errorf("the doc.go of sqltx does not show gormTx:\n%s", body)
	}
}
