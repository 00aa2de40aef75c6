package main

import (
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/jackc/pgx/v5/pgxpool"
)

// errConnString: the connection string can't be parsed. Errors that wrap it never quote the string,
// since a password may be anywhere in it.
var errConnString = errors.New("invalid connection string")

const (
	urlAdvice = "write postgres://USER:PASSWORD@HOST:PORT/DATABASE, and inside " +
		"a name or a password write @ / ? # % : as %40 %2F %3F %23 %25 %3A"
	keywordAdvice = "write postgres://USER:PASSWORD@HOST:PORT/DATABASE, or " +
		"host=HOST user=USER password='PASSWORD' dbname=DATABASE and quote values with blanks"
	variablesAdvice = "check PGHOST, PGPORT, PGSSLMODE, PGSERVICE and the other PG* variables"
)

// config parses the connection string. It does not return pgx's errors: pgx hides passwords, but
// can not find them in a malformed string.
func (d database) config() (*pgxpool.Config, error) {
	invalid := func(advice string) error { return fmt.Errorf("%w in %s: %s", errConnString, d.source, advice) }
	rest, isURL := cutScheme(d.connString)
	advice := keywordAdvice
	if isURL {
		advice = urlAdvice
	}
	switch {
	case d.connString == "" && d.source == "--database-url":
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

func cutScheme(s string) (rest string, isURL bool) {
	for _, scheme := range []string{"postgres://", "postgresql://"} {
		if rest, ok := strings.CutPrefix(s, scheme); ok {
			return rest, true
		}
	}
	return s, false
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
