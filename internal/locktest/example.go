package locktest

import (
	"context"
	"crypto/rand"
	"log"
	"net/url"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/internal/testserver"
	"github.com/pglock/pglock-go/migrations"
	"github.com/pglock/pglock-go/pglock"
)

// ExampleClient returns a client for an Example function, on a schema of its own. stop closes the
// client and drops the schema. A failure ends the program, since an example has no test to fail.
func ExampleClient() (client *pglock.Client, stop func()) {
	ctx := context.Background()
	server, err := testserver.Get(ctx)
	if err != nil {
		log.Fatal(err)
	}
	pool, err := pgxpool.New(ctx, server.URL)
	if err != nil {
		log.Fatal(err)
	}
	name := "example " + rand.Text()
	if err := migrations.Up(ctx, pool, migrations.WithSchema(name)); err != nil {
		log.Fatal(err)
	}
	if client, err = pglock.Open(ctx, pool, pglock.WithSchema(name)); err != nil {
		log.Fatal(err)
	}
	return client, func() {
		defer pool.Close()
		if err := client.Close(ctx); err != nil { // releases its locks, so before the schema is dropped
			log.Fatal(err)
		}
		if _, err := pool.Exec(ctx, "DROP SCHEMA "+pgx.Identifier{name}.Sanitize()+" CASCADE"); err != nil {
			log.Fatal(err)
		}
	}
}

// ExampleDatabase returns the URL of a new database for an Example function, after it has run the
// statements. drop drops it, with the connections to it.
func ExampleDatabase(statements ...string) (databaseURL string, drop func()) {
	ctx := context.Background()
	server, err := testserver.Get(ctx)
	if err != nil {
		log.Fatal(err)
	}
	at, err := url.Parse(server.URL)
	if err != nil {
		log.Fatal(err)
	}
	name := "example_" + strings.ToLower(rand.Text())
	run := func(databaseURL string, statements ...string) {
		conn, err := pgx.Connect(ctx, databaseURL)
		if err != nil {
			log.Fatal(err)
		}
		defer conn.Close(ctx)
		for _, s := range statements {
			if _, err := conn.Exec(ctx, s); err != nil {
				log.Panicf("%s: %v", s, err)
			}
		}
	}
	run(server.URL, "CREATE DATABASE "+name)
	at.Path = "/" + name
	run(at.String(), statements...)
	return at.String(), func() { run(server.URL, "DROP DATABASE "+name+" WITH (FORCE)") }
}
