package main

import (
	"context"
	"crypto/rand"
	_ "embed"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/migrations"
)

// The statements name no schema: connections have it as their search_path.
var (
	//go:embed sql/create.sql
	createSQL string
	//go:embed sql/tally.sql
	tallySQL string
)

const (
	countEvents  = "SELECT count(*) FROM events WHERE account = $1 AND kind = $2 AND token > $3"
	countEntries = "SELECT count(*) FROM entries WHERE account = $1 AND token > $2"

	// dropTimeout bounds the end: the server soon notices that the workers are gone.
	dropTimeout = 15 * time.Second
)

// errLeftBehind means that the schema could not be dropped.
var errLeftBehind = errors.New("left behind")

// ledger is a schema with the balances, the entries that say what they should be, the events of the
// workers and the parent's orders, and pglock's own tables.
type ledger struct {
	url, schema string
	pool        *pgxpool.Pool
}

// event is a row of the table events. An order is an event, too.
type event struct {
	Worker  string
	Kind    string
	Token   int64     // of the lease, 0 without one
	Balance int64     // read (holding) or written (wrote)
	At      time.Time // of granted: by the server's clock
	Text    string
}

// The kinds of events.
const (
	ready   = "ready"   // the worker is connected
	granted = "granted" // it holds the lock
	holding = "holding" // it has reached the place where it is to be held
	wrote   = "wrote"   // it was held, and its deposit is committed
	refused = "refused" // it was held, and its deposit was refused; Text has the refusals as JSON

	begin  = "begin"  // order: all begin
	hold   = "hold"   // order: the next holder stays at the place that Text names
	resume = "resume" // order: the holder with the token goes on
	finish = "finish" // order: end after the current deposit
)

// createLedger makes the schema. The caller drops it.
func createLedger(ctx context.Context, url string) (*ledger, error) {
	l, err := openLedger(ctx, url, "pglock_demo_"+strings.ToLower(rand.Text()[:10]), "parent")
	if err != nil {
		return nil, err
	}
	if err = migrations.Up(ctx, l.pool, migrations.WithSchema(l.schema)); err == nil {
		err = l.exec(ctx, createSQL)
	}
	if err != nil {
		return nil, errors.Join(err, l.drop())
	}
	return l, nil
}

// openLedger connects. The server's view of its connections shows who.
func openLedger(ctx context.Context, url, schema, who string) (*ledger, error) {
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, err
	}
	config.MaxConns = 2
	config.ConnConfig.RuntimeParams["application_name"] = "pglock demo " + who
	config.ConnConfig.RuntimeParams["search_path"] = pgx.Identifier{schema}.Sanitize()
	pool, err := pgxpool.NewWithConfig(ctx, config)
	return &ledger{url: url, schema: schema, pool: pool}, err
}

// drop removes the schema and closes the pool. It does not depend on an interrupted context.
func (l *ledger) drop() error {
	ctx, cancel := context.WithTimeout(context.Background(), dropTimeout)
	defer cancel()
	defer l.pool.Close()
	if err := l.exec(ctx, "DROP SCHEMA IF EXISTS "+l.schema+" CASCADE"); err != nil {
		return fmt.Errorf("schema %s is %w: %w", l.schema, errLeftBehind, err)
	}
	return nil
}

func (l *ledger) exec(ctx context.Context, sql string, args ...any) error {
	_, err := l.pool.Exec(ctx, sql, args...)
	return err
}

func (l *ledger) count(ctx context.Context, sql string, args ...any) (n int, err error) {
	err = l.pool.QueryRow(ctx, sql, args...).Scan(&n)
	return n, err
}

// untilCount polls until a count is at least n.
func (p *performance) untilCount(ctx context.Context, what string, n int, sql string, args ...any) error {
	return p.until(ctx, what, func() (bool, error) {
		got, err := p.count(ctx, sql, args...)
		return got >= n, err
	})
}

// write adds an event.
func (l *ledger) write(ctx context.Context, account string, e event) error {
	return l.exec(ctx, "INSERT INTO events (account, worker, kind, token, balance, at, text) VALUES ($1, $2, $3, $4, $5, $6, $7)",
		account, e.Worker, e.Kind, e.Token, e.Balance, e.At, e.Text)
}

// read returns the first event that the condition holds for. The account is $1.
func (l *ledger) read(ctx context.Context, condition string, args ...any) (e event, found bool, err error) {
	err = l.pool.QueryRow(ctx, "SELECT worker, kind, token, balance, at, text FROM events WHERE account = $1 AND "+condition+
		" ORDER BY n LIMIT 1", args...).Scan(&e.Worker, &e.Kind, &e.Token, &e.Balance, &e.At, &e.Text)
	if errors.Is(err, pgx.ErrNoRows) {
		return e, false, nil
	}
	return e, err == nil, err
}

func (l *ledger) grants(ctx context.Context, account string) ([]grant, error) {
	rows, err := l.pool.Query(ctx, "SELECT worker, token, at FROM events WHERE account = $1 AND kind = 'granted' ORDER BY n", account)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (g grant, err error) {
		return g, row.Scan(&g.holder, &g.token, &g.at)
	})
}

// expiry returns when the grant with that token expires unless renewed, by the server's clock. It
// returns the zero time if there is a newer grant.
func (l *ledger) expiry(ctx context.Context, token int64) (at time.Time, err error) {
	err = l.pool.QueryRow(ctx, "SELECT expires_at FROM distributed_locks WHERE name = $1 AND token = $2", lockName, token).Scan(&at)
	if errors.Is(err, pgx.ErrNoRows) {
		err = nil
	}
	return at, err
}

// tally is what the tables say about an account.
type tally struct {
	deposits int64 // entries
	balance  int64
	overdue  []int64 // tokens of entries that came after an entry with a newer token
}

// lost returns how many deposits the balance lacks.
func (t tally) lost() int64 { return t.deposits - t.balance }

func (l *ledger) tally(ctx context.Context, account string) (t tally, err error) {
	err = l.pool.QueryRow(ctx, tallySQL, account).Scan(&t.deposits, &t.balance, &t.overdue)
	return t, err
}
