package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/internal/pgtx"
	"github.com/pglock/pglock-go/internal/schema"
	"github.com/pglock/pglock-go/pglock"
)

// errConnString: the connection string can't be parsed. Errors that wrap it never quote the string,
// since a password may be anywhere in it.
var errConnString = errors.New("invalid connection string")

// connectTimeout bounds the connection to a host, unless connect_timeout or PGCONNECT_TIMEOUT does.
const connectTimeout = 10 * time.Second

type database struct {
	connString string // empty: only the PG* variables count
	source     string
}

func (g *globals) database() database {
	if g.cmd.PersistentFlags().Changed("database-url") {
		return database{g.databaseURL, "--database-url"}
	}
	// An empty one, as from a secret without that key, must not lead to another database in
	// silence.
	if value, set := os.LookupEnv("PGLOCK_DATABASE_URL"); set {
		return database{value, "$PGLOCK_DATABASE_URL"}
	}
	if value := os.Getenv("DATABASE_URL"); value != "" { // of other programs too, which may leave it empty
		return database{value, "$DATABASE_URL"}
	}
	return database{"", variables}
}

const (
	variables = "the PG* variables and their defaults"
	urlAdvice = "write postgres://USER:PASSWORD@HOST:PORT/DATABASE, and inside " +
		"a name or a password write @ / ? # % : as %40 %2F %3F %23 %25 %3A"
	keywordAdvice = "write postgres://USER:PASSWORD@HOST:PORT/DATABASE, or " +
		"host=HOST user=USER password='PASSWORD' dbname=DATABASE and quote values with blanks"
	variablesAdvice = "check PGHOST, PGPORT, PGSSLMODE, PGSERVICE and the other PG* variables"
)

// config parses the connection string. It does not return pgx's errors, because pgx hides
// passwords, but can't find them in a malformed string.
func (d database) config() (*pgxpool.Config, error) {
	invalid := func(advice string) error { return fmt.Errorf("%w in %s: %s", errConnString, d.source, advice) }
	rest, isURL := strings.CutPrefix(d.connString, "postgres://")
	if !isURL {
		rest, isURL = strings.CutPrefix(d.connString, "postgresql://")
	}
	advice := keywordAdvice
	if isURL {
		advice = urlAdvice
	}
	switch {
	case d.connString == "" && d.source != variables:
		return nil, invalid("it is empty: must be set")
	case isURL && hasStrayAt(rest):
		return nil, invalid(advice)
	}
	if config, err := pgxpool.ParseConfig(d.connString); err == nil && plausible(config) {
		return config, nil
	}
	if _, err := pgxpool.ParseConfig(""); err != nil {
		return nil, invalid(variablesAdvice) // these variables always count
	}
	return nil, invalid(advice)
}

// hasStrayAt reports whether an @ is after the user and the password. pgx would take a part of the
// password for a host, a port or a database, and show it in a connection error.
func hasStrayAt(rest string) bool {
	first := strings.IndexAny(rest, "@/?")
	return first >= 0 && strings.Contains(rest[first+1:], "@")
}

var (
	host      = regexp.MustCompile(`^[\pL\pN._:%-]+$`)
	parameter = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_.]*$`)
)

// plausible reports whether hosts and parameter names have valid characters. pgx accepts any text.
func plausible(config *pgxpool.Config) bool {
	c := config.ConnConfig
	hosts := []string{c.Host}
	for _, f := range c.Fallbacks {
		hosts = append(hosts, f.Host)
	}
	for _, h := range hosts {
		isSocket := strings.HasPrefix(h, "/") || strings.HasPrefix(h, "@") || len(h) > 2 && h[1] == ':' && h[2] == '\\'
		if !isSocket && !host.MatchString(h) {
			return false
		}
	}
	for name := range c.RuntimeParams {
		if !parameter.MatchString(name) {
			return false
		}
	}
	return true
}

// openPool returns a pool that has no connection yet, or an error that wraps errConnString.
func (g *globals) openPool(ctx context.Context) (*pgxpool.Pool, error) {
	config, err := g.database().config()
	if err != nil {
		return nil, err
	}
	config.MinConns, config.MinIdleConns = 0, 0
	config.ConnConfig.ConnectTimeout = cmp.Or(config.ConnConfig.ConnectTimeout, connectTimeout)
	if params := config.ConnConfig.RuntimeParams; params["application_name"] == "" { // as the holder's name is or begins
		host, _ := os.Hostname()
		params["application_name"] = cmp.Or(g.holder, fmt.Sprintf("%.40s:%d", host, os.Getpid()))
	}
	return pgxpool.NewWithConfig(ctx, config)
}

// explainConnect adds the source of the connection string to a connection error. It drops the
// server's text about a parameter, because that text quotes it: after a blank in an unquoted
// password, the rest of the password is such a parameter. Only the name of one that is none is
// kept.
func (d database) explainConnect(err error) error {
	var connect *pgconn.ConnectError
	var pg *pgconn.PgError
	switch {
	case !errors.As(err, &connect) && !errors.Is(err, pglock.ErrUnavailable):
		return err
	case errors.As(err, &pg) && (pg.Code == pgtx.UndefinedObject || strings.HasPrefix(pg.Code, pgtx.DataException)):
		if name := d.named(pg.Message); name != "" {
			return fmt.Errorf("%w in %s: the server refuses the parameter %s (SQLSTATE %s): correct or remove it", errConnString, d.source, name, pg.Code)
		}
		return fmt.Errorf("%w in %s: the server refuses a parameter (SQLSTATE %s): "+
			"check names and values, and quote values with blanks", errConnString, d.source, pg.Code)
	}
	return fmt.Errorf("%w (the database is from %s)", shortened{err}, d.source)
}

// named returns the parameter of a URL that the text names. In other strings, and beside a password
// in the parameters, a part of the password may look like one, so it returns none.
func (d database) named(text string) string {
	u, err := url.Parse(d.connString)
	if err != nil || u.Scheme == "" || strings.Contains(u.RawQuery, "password") {
		return ""
	}
	words := strings.FieldsFunc(text, func(r rune) bool { return !parameter.MatchString("x" + string(r)) })
	for name := range u.Query() {
		if slices.Contains(words, name) {
			return name
		}
	}
	return ""
}

// shortened is a connection error with the reason of each attempt once: pgx tries a host with TLS
// and without, and the server's refusal of TLS says nothing if there is another reason.
type shortened struct{ error }

func (e shortened) Unwrap() error { return e.error }

func (e shortened) Error() string {
	attempts := strings.Split(e.error.Error(), "; ")
	// The first one follows the text of the call.
	for i := len(attempts) - 1; i > 0; i-- {
		if strings.HasSuffix(attempts[0], attempts[i]) {
			attempts = slices.Delete(attempts, i, i+1)
		}
	}
	if head, _, refused := strings.Cut(attempts[0], "tls error: server refused TLS connection"); refused && len(attempts) > 1 {
		_, reason, _ := strings.Cut(attempts[1], "): ")
		attempts = append([]string{head + reason}, attempts[2:]...)
	}
	return strings.Join(slices.Compact(attempts), "; ")
}

// explainPrivilege adds the command that grants the missing right to the role.
func (g *globals) explainPrivilege(err error) error {
	if !errors.Is(err, pglock.ErrPrivilege) || schema.RowSecurity(err) {
		return err
	}
	config, configErr := g.database().config()
	if configErr != nil {
		return err
	}
	role := config.ConnConfig.User
	return fmt.Errorf("%w, where ROLE is %q, or: pglock migrate up --schema %s --grant-user %s",
		err, role, schema.ShellWord(g.schema), schema.ShellWord(role))
}
