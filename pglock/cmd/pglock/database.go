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

	"github.com/pglock/pglock-go/pglock"
)

// connectTimeout is how long one host may keep silent, unless connect_timeout or
// PGCONNECT_TIMEOUT says otherwise.
const connectTimeout = 10 * time.Second

// database is what the person asked to connect to, and where that was said.
type database struct {
	connString string // empty: the PG* variables say it all
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

// openPool returns a pool that has connected to nothing yet, or an error that
// wraps errConnString.
func (g *globals) openPool(ctx context.Context) (*pgxpool.Pool, error) {
	config, err := g.database().config()
	if err != nil {
		return nil, err
	}
	config.MinConns, config.MinIdleConns = 0, 0
	config.ConnConfig.ConnectTimeout = cmp.Or(config.ConnConfig.ConnectTimeout, connectTimeout)
	return pgxpool.NewWithConfig(ctx, config)
}

// explainConnect adds to a failure to connect where the connection string came
// from. What a server has to say on one of its parameters is left out: it quotes
// it, and after a blank in an unquoted password the rest is such a parameter.
func (d database) explainConnect(err error) error {
	var connect *pgconn.ConnectError
	var pg *pgconn.PgError
	switch {
	case !errors.As(err, &connect) && !errors.Is(err, pglock.ErrUnavailable):
		return err
	case errors.As(err, &pg) && (pg.Code == "42704" || strings.HasPrefix(pg.Code, "22")): // undefined_object, data_exception
		return fmt.Errorf("%w: the server refuses a parameter of %s (SQLSTATE %s): "+
			"check their names and values, and quotes around values with blanks", errConnString, d.source, pg.Code)
	}
	return fmt.Errorf("%w (the database is from %s)", err, d.source)
}
