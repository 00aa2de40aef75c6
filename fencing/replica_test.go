package fencing_test

import (
	"net/url"
	"testing"
	"time"

	"github.com/pglock/pglock-go/fencing"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/internal/schema"
	"github.com/pglock/pglock-go/internal/testserver"
)

// TestReplicatedRowsAreAccepted with the publisher's tokens: the triggers fire only at the origin
// of a change.
func TestReplicatedRowsAreAccepted(t *testing.T) {
	t.Parallel()
	server := pgtest.Server(t, testserver.Options{Settings: map[string]string{"wal_level": "logical"}})
	publisher := newFixtureOn(t, pgtest.PoolOn(t, server.URL()))
	publisher.sql("CREATE DATABASE subscriber")
	config := publisher.pool.Config()
	there, err := url.Parse(server.URL())
	ok(t, err)
	there.Path = "/subscriber"
	pool := pgtest.PoolOn(t, there.String())
	subscriber := fixture{t: t, pool: pool, schema: publisher.schema}
	ok(t, migrate(t, pool, publisher.schema))
	for _, g := range []fixture{publisher, subscriber} {
		g.sql("CREATE TABLE pglock.t " + columns)
		g.protect(schema.Quote(g.schema) + ".t")
	}
	table := schema.Quote(publisher.schema) + ".t"
	publisher.open(table)
	f := publisher.grant("n", time.Minute)
	want(t, "before", publisher.as(f, "INSERT INTO "+table+" VALUES (1, 0)"), nil)
	publisher.sql("CREATE PUBLICATION p FOR TABLE " + table)
	publisher.sql("SELECT pg_create_logical_replication_slot('s', 'pgoutput')")
	c := config.ConnConfig
	subscriber.sql(sprintf("CREATE SUBSCRIPTION s CONNECTION 'host=%s port=%d user=%s dbname=%s password=%s' PUBLICATION p WITH (create_slot = false, slot_name = 's')",
		c.Host, c.Port, c.User, c.Database, c.Password))
	want(t, "after", publisher.as(f, "INSERT INTO "+table+" VALUES (2, 0)", "UPDATE "+table+" SET v = 1 WHERE id = 1"), nil)
	pgtest.Eventually(t, "the rows arrive", func() bool {
		return subscriber.dump(table) == sprintf("(1,1,%[1]d) (2,0,%[1]d)", f.Token)
	})
	_, err = pool.Exec(t.Context(), "UPDATE "+table+" SET v = 5")
	want(t, "a write to the subscriber", fencing.Explain(err), fencing.ErrUnfenced)
	subscriber.sql("ALTER SUBSCRIPTION s DISABLE")
	pgtest.Eventually(t, "the subscription ends", func() bool {
		return !value[bool](publisher, "SELECT active FROM pg_replication_slots")
	})
	subscriber.sql("ALTER SUBSCRIPTION s SET (slot_name = NONE)")
	subscriber.sql("DROP SUBSCRIPTION s")
	publisher.sql("SELECT pg_drop_replication_slot('s')")
}
