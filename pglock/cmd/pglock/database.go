package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/internal/pgtx"
	"github.com/pglock/pglock-go/internal/schema"
	"github.com/pglock/pglock-go/pglock"
)

// connectTimeout bounds the connection to one host, unless connect_timeout or PGCONNECT_TIMEOUT is
// set.
const connectTimeout = 10 * time.Second

// database is the connection string and where it comes from.
type database struct {
	connString string // empty: only the PG* variables count
	source     string
}

func (g *globals) database() database {
	if g.cmd.PersistentFlags().Changed("database-url") {
		return database{g.databaseURL, "--database-url"}
	}
	for _, name := range []string{"PGLOCK_DATABASE_URL", "DATABASE_URL"} {
		if value := os.Getenv(name); value != "" {
			return database{value, "$" + name}
		}
	}
	return database{"", "the PG* variables and their defaults"}
}

// openPool returns a pool that has no connection yet, or an error that wraps errConnString.
func (g *globals) openPool(ctx context.Context) (*pgxpool.Pool, error) {
	config, err := g.database().config()
	if err != nil {
		return nil, err
	}
	config.MinConns, config.MinIdleConns = 0, 0
	config.ConnConfig.ConnectTimeout = cmp.Or(config.ConnConfig.ConnectTimeout, connectTimeout)
	return pgxpool.NewWithConfig(ctx, config)
}

// explainConnect adds the source of the connection string to a connection error. It drops the
// server's text about a parameter, because that text quotes it: after a blank in an unquoted
// password, the rest of the password is such a parameter.
func (d database) explainConnect(err error) error {
	var connect *pgconn.ConnectError
	var pg *pgconn.PgError
	switch {
	case !errors.As(err, &connect) && !errors.Is(err, pglock.ErrUnavailable):
		return err
	case errors.As(err, &pg) && (pg.Code == pgtx.UndefinedObject || strings.HasPrefix(pg.Code, pgtx.DataException)):
		return fmt.Errorf("%w in %s: the server refuses a parameter (SQLSTATE %s): "+
			"check names and values, and quote values with blanks", errConnString, d.source, pg.Code)
	}
	return fmt.Errorf("%w (the database is from %s)", err, d.source)
}

// explainPrivilege adds the command that grants the missing right to the role.
func (g *globals) explainPrivilege(err error) error {
	if !errors.Is(err, pglock.ErrPrivilege) {
		return err
	}
	config, configErr := g.database().config()
	if configErr != nil {
		return err
	}
	role := config.ConnConfig.User
	return fmt.Errorf("%w, where ROLE is %q, or: pglock migrate up --schema %s --grant-user %s",
		err, role, schema.ShellWord(g.schemaName()), schema.ShellWord(role))
}
