package leasetable

import (
	"embed"

	"github.com/pglock/pglock-go/internal/schema"
)

//go:embed sql/*.sql
var sqlFiles embed.FS

// Statements that need no file.
const (
	// highestSQL returns the highest token of a row, for idle.sql.
	highestSQL = "SELECT coalesce(max(token), 0) FROM pglock.distributed_locks"

	// forgetSQL takes a client's rows for some names out of the queue, all that are used up.
	forgetSQL = "DELETE FROM pglock.lock_waiters WHERE client = $1::text AND name = ANY ($2::text[]) AND ticket = ANY ($3::bigint[])"

	// quitSQL takes a client out of the queue.
	quitSQL = "DELETE FROM pglock.lock_waiters WHERE client = $1::text"

	// deadSQL clears the queue of clients that ended without quitting.
	deadSQL = "DELETE FROM pglock.lock_waiters WHERE expires_at < clock_timestamp() - interval '1 min'"
)

// statements are the protocol's, rendered once for a client's schema.
type statements struct {
	take, takeAll, look, acquire, renew, alive string
	release, releaseAll, withdraw              string
	join, leave, refresh, forget, quit         string
	handoff                                    string
	get, highest, idle, prune, deadRows        string
}

func newStatements(name string) statements {
	file := func(verb string) string { return schema.Render(sqlFile(verb), name) }
	return statements{
		take: file("take"), takeAll: file("take_all"), look: file("look"), acquire: file("acquire"), renew: file("renew"), alive: file("alive"),
		release: file("release"), releaseAll: file("release_all"), withdraw: file("withdraw"),
		join: file("join"), leave: file("leave"), refresh: file("refresh"),
		forget: schema.Render(forgetSQL, name), quit: schema.Render(quitSQL, name),
		handoff: file("handoff"),
		get:     file("get"), highest: schema.Render(highestSQL, name), idle: file("idle"), prune: file("prune"),
		deadRows: schema.Render(deadSQL, name),
	}
}

// sqlFile returns the statement of that name, for the default schema.
func sqlFile(verb string) string {
	text, err := sqlFiles.ReadFile("sql/" + verb + ".sql")
	if err != nil {
		panic(err) // it is embedded, or no test passes
	}
	return string(text)
}
