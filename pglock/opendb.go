package pglock

import (
	"context"
	"database/sql"

	"github.com/pglock/pglock-go/leasetable"
)

// OpenDB is Open for a program that has a *sql.DB and no pgx pool. db must run on pgx's stdlib
// driver, directly or through a driver that wraps it and passes arguments on unchanged.
//
//	db, err := sql.Open("pgx", os.Getenv("DATABASE_URL")) // import _ "github.com/jackc/pgx/v5/stdlib"
//	...
//	client, err := pglock.OpenDB(ctx, db)
//
// The client has everything that a client of Open has. Guard and Bind take a *sql.Tx through
// sqltx.Wrap. DoTx runs on a connection of db and passes a pgx.Tx; for a *sql.Tx see [Client.DoTx].
// migrations.UpDB creates the tables.
//
// OpenDB takes one connection out of db, reads its configuration (server, user, execution mode,
// query tracer), and returns it. Leases use connections of the client's own with that configuration,
// so that they need none of db, whatever SetMaxOpenConns is. Close the client before db; if db is
// closed first, leases go on, but DoTx fails.
//
// Two things can't be read from db. The hooks of stdlib.OpenDB do not run for the client's own
// connections: OptionBeforeConnect, which may set short-lived passwords, and OptionAfterConnect,
// which may set a role. And if db stands on a pool (stdlib.OpenDBFromPool), nor do those of the
// pool. A program with such hooks should call Open with a pgxpool.Pool that has the same hooks. Open
// only reads the configuration of that pool, which opens no connection before DoTx.
//
// The errors are those of Open. The error wraps ErrDriver if db runs on another driver, such as
// lib/pq, and ErrPoolExhausted if db has lent no connection for 10 s, because the program holds all
// of them. ctx bounds OpenDB only.
func OpenDB(ctx context.Context, db *sql.DB, opts ...Option) (*Client, error) {
	leases, err := leasetable.OpenDB(ctx, db, opts...)
	if err != nil {
		return nil, err
	}
	return &Client{leases: leases, db: db, schema: leases.Schema()}, nil
}
