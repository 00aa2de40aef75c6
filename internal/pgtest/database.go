package pgtest

import (
	"net/url"
	"testing"

	"github.com/jackc/pgx/v5"
)

// Database creates an empty database on the shared server and returns its URL. On cleanup it is dropped, whoever is
// still connected to it.
func Database(tb testing.TB) string {
	tb.Helper()
	server := URL(tb)
	u, err := url.Parse(server)
	if err != nil {
		tb.Fatal("pgtest: Database needs the server's address as a URL, not as keywords and values")
	}
	name := oddName()
	quoted := pgx.Identifier{name}.Sanitize()
	if err := execute(server, "CREATE DATABASE "+quoted+" TEMPLATE template0"); err != nil {
		tb.Fatalf("pgtest: create database %q: %v", name, err)
	}
	tb.Cleanup(func() {
		if err := execute(server, "DROP DATABASE "+quoted+" WITH (FORCE)"); err != nil {
			tb.Errorf("pgtest: drop database %q: %v", name, err)
		}
	})
	u.Path, u.RawPath = "/"+name, ""
	return u.String()
}
