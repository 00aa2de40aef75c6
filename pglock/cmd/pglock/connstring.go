package main

import (
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5/pgxpool"
)

// errConnString: the connection string can't be understood. The text around it
// never quotes any of it, since a password may be in any place of it.
var errConnString = errors.New("invalid connection string")

const (
	urlAdvice = "a URL is postgres://USER:PASSWORD@HOST:PORT/DATABASE, in which @ / ? # % and : " +
		"inside a name or a password are written %40 %2F %3F %23 %25 and %3A"
	keywordAdvice = "write postgres://USER:PASSWORD@HOST:PORT/DATABASE, or " +
		"host=HOST user=USER password='PASSWORD' dbname=DATABASE with blanks only inside quotes"
	variablesAdvice = "check PGHOST, PGPORT, PGSSLMODE, PGSERVICE and the other PG* variables"
)

// config parses the connection string. pgx's own errors are not shown: it hides
// passwords as well as it can tell, which in a broken string it can't.
func (d database) config() (*pgxpool.Config, error) {
	rest, isURL := cutScheme(d.connString)
	advice := keywordAdvice
	if isURL {
		advice = urlAdvice
	}
	switch {
	case d.connString == "" && d.source == "--database-url":
		return nil, d.invalid("it is empty")
	case isURL && strayAt(rest):
		return nil, d.invalid(advice)
	}
	config, err := pgxpool.ParseConfig(d.connString)
	if err == nil && plausible(config) {
		return config, nil
	}
	if _, err := pgxpool.ParseConfig(""); err != nil {
		return nil, d.invalid(variablesAdvice) // they count in any case
	}
	if name := culprit(d.connString); err != nil && name != "" {
		advice = "the value of " + name
	}
	return nil, d.invalid(advice)
}

func (d database) invalid(advice string) error {
	return fmt.Errorf("%w in %s: %s", errConnString, d.source, advice)
}

func cutScheme(s string) (rest string, isURL bool) {
	for _, scheme := range []string{"postgres://", "postgresql://"} {
		if rest, ok := strings.CutPrefix(s, scheme); ok {
			return rest, true
		}
	}
	return s, false
}

// strayAt reports whether an @ stands where it ends no user and password. Then a
// part of the password would be taken for a host, a port or a database, and be
// shown in the error when that can't be reached.
func strayAt(rest string) bool {
	first := strings.IndexAny(rest, "@/?")
	return first >= 0 && strings.Contains(rest[first+1:], "@")
}

var (
	host      = regexp.MustCompile(`^[\pL\pN._:%-]+$`)
	parameter = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_.]*$`)
)

// plausible reports whether hosts and parameters look like such. pgx takes any text.
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

// named are the parameters of which culprit may say that they are wrong. Only
// known names are repeated, since others may be the tail of a password.
var named = []string{
	"channel_binding", "connect_timeout", "max_protocol_version", "min_protocol_version",
	"pool_max_conns", "port", "require_auth", "service", "sslcert", "sslcertmode", "sslkey",
	"sslmode", "sslnegotiation", "sslrootcert", "target_session_attrs",
}

// culprit returns the parameter without which the URL can be parsed, or "".
func culprit(connString string) string {
	u, err := url.Parse(connString)
	if _, isURL := cutScheme(connString); !isURL || err != nil {
		return ""
	}
	for name := range u.Query() {
		without := u.Query()
		without.Del(name)
		v := *u
		v.RawQuery = without.Encode()
		if _, err := pgxpool.ParseConfig(v.String()); err == nil && slices.Contains(named, name) {
			return name
		}
	}
	return ""
}
