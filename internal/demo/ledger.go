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

	"github.com/pglock/pglock-go/internal/schema"
	"github.com/pglock/pglock-go/migrations"
)

var (
	//go:embed sql/create.sql
	createSQL string
	//go:embed sql/tally.sql
	tallySQL string
)

const (
	openSQL    = "INSERT INTO pglock.ledger (account, balance) VALUES ($1::text, 0)"
	balanceSQL = "SELECT balance FROM pglock.ledger WHERE account = $1::text"
	updateSQL  = "UPDATE pglock.ledger SET balance = $2::bigint WHERE account = $1::text"
	enterSQL   = "INSERT INTO pglock.entries (account, worker, token) VALUES ($1::text, $2::text, $3::bigint)"
	expirySQL  = `SELECT expires_at, greatest(0, extract(epoch FROM expires_at - clock_timestamp()) * 1000000)::bigint
		FROM pglock.distributed_locks WHERE name = $1::text AND token = $2::bigint`

	// dropPatience bounds the end: the server notices soon that the workers are gone.
	dropPatience = 15 * time.Second
)

// ledger is the balances, the entries that tell what they should be, and
// pglock's own tables, in one schema.
type ledger struct {
	url    string
	schema string
	pool   *pgxpool.Pool
	sql    statements
}

// statements are rendered for the ledger's schema.
type statements struct {
	create, open, balance, update, enter, expiry, tally string
}

func newStatements(name string) statements {
	render := func(sql string) string { return schema.Render(sql, name) }
	return statements{
		create: render(createSQL), open: render(openSQL), balance: render(balanceSQL), update: render(updateSQL),
		enter: render(enterSQL), expiry: render(expirySQL), tally: render(tallySQL),
	}
}

// errLeftBehind: the schema could not be dropped.
var errLeftBehind = errors.New("left behind")

// createLedger makes the schema. The caller drops it.
func createLedger(ctx context.Context, url string) (*ledger, error) {
	name := "pglock_demo_" + strings.ToLower(rand.Text()[:10])
	l, err := openLedger(ctx, url, name, "parent")
	if err != nil {
		return nil, err
	}
	err = migrations.Up(ctx, l.pool, migrations.WithSchema(name))
	if err == nil {
		_, err = l.pool.Exec(ctx, l.sql.create)
	}
	if err != nil {
		return nil, errors.Join(err, l.drop())
	}
	return l, nil
}

// openLedger connects to a schema that is, or is to be, there. who tells people
// that look at the server's connections whose they are.
func openLedger(ctx context.Context, url, name, who string) (*ledger, error) {
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, err
	}
	config.MaxConns = 2
	config.ConnConfig.RuntimeParams["application_name"] = "pglock demo " + who
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, err
	}
	return &ledger{url: url, schema: name, pool: pool, sql: newStatements(name)}, nil
}

// drop removes the schema and closes the pool. It works when everything else was
// interrupted.
func (l *ledger) drop() error {
	ctx, cancel := context.WithTimeout(context.Background(), dropPatience)
	defer cancel()
	_, err := l.pool.Exec(ctx, "DROP SCHEMA IF EXISTS "+schema.Quote(l.schema)+" CASCADE")
	l.pool.Close()
	if err != nil {
		return fmt.Errorf("schema %s is %w: %w", l.schema, errLeftBehind, err)
	}
	return nil
}

// open begins an account.
func (l *ledger) open(ctx context.Context, account string) error {
	_, err := l.pool.Exec(ctx, l.sql.open, account)
	return err
}

func (l *ledger) balance(ctx context.Context, account string) (balance int64, err error) {
	err = l.pool.QueryRow(ctx, l.sql.balance, account).Scan(&balance)
	return balance, err
}

// deposit writes a new balance, and the entry for it. The row of the balance stays
// locked until the commit, so entries are numbered in the order of the writes.
func (l *ledger) deposit(ctx context.Context, tx pgx.Tx, account, worker string, token, balance int64) error {
	var batch pgx.Batch
	batch.Queue(l.sql.update, account, balance)
	batch.Queue(l.sql.enter, account, worker, token)
	return tx.SendBatch(ctx, &batch).Close()
}

// expiry returns when the grant with that token ends unless renewed, by the
// server's clock, and how long that is from now. found is false if it is not the
// newest grant any more.
func (l *ledger) expiry(ctx context.Context, token int64) (at time.Time, left time.Duration, found bool, err error) {
	var us int64
	err = l.pool.QueryRow(ctx, l.sql.expiry, lockName, token).Scan(&at, &us)
	if errors.Is(err, pgx.ErrNoRows) {
		return at, 0, false, nil
	}
	return at, time.Duration(us) * time.Microsecond, err == nil, err
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
	err = l.pool.QueryRow(ctx, l.sql.tally, account).Scan(&t.deposits, &t.balance, &t.overdue)
	return t, err
}
