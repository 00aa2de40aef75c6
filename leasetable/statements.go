package leasetable

import (
	"embed"

	"github.com/pglock/pglock-go/internal/schema"
)

//go:embed sql/*.sql
var sqlFiles embed.FS

// Statements that need no file.
const (
	// grantedToSQL reports whether the grant of a request holds the lock.
	grantedToSQL = "SELECT EXISTS (SELECT FROM pglock.distributed_locks AS l WHERE l.name = $1::text AND l.request = $2::text::uuid " +
		"AND l.holder IS NOT NULL AND l.expires_at > clock_timestamp()) OR EXISTS (SELECT FROM pglock.lock_permits AS p " +
		"WHERE p.name = $1::text AND p.request = $2::text::uuid AND p.holder IS NOT NULL AND p.expires_at > clock_timestamp())"

	// liftSQL raises the sequence to the token of a name's row, and returns the highest token that
	// was handed out.
	liftSQL = "SELECT pglock.lift_fencing_tokens($1::text)"

	// deleteRowsSQL deletes unused rows from the queue: clients, names and tickets.
	deleteRowsSQL = "DELETE FROM pglock.lock_waiters AS w USING unnest((SELECT $1::text[]), (SELECT $2::text[]), (SELECT $3::bigint[])) " +
		"AS a (client, name, ticket) WHERE w.name = a.name AND w.client = a.client AND w.ticket = a.ticket"

	// quitQueueSQL deletes all of a client's rows from the queue.
	quitQueueSQL = "DELETE FROM pglock.lock_waiters WHERE client = $1::text OR starts_with(client, $1::text || '" + AllSuffix + "/')"

	// deleteDeadRowsSQL deletes the queue rows of dead clients. It waits for no row lock.
	deleteDeadRowsSQL = "DELETE FROM pglock.lock_waiters WHERE ctid = ANY (ARRAY(SELECT w.ctid FROM pglock.lock_waiters AS w " +
		"WHERE w.expires_at < clock_timestamp() - interval '1 min' LIMIT 10000 FOR UPDATE SKIP LOCKED))"
)

// The statements of permits and of several names are functions of the schema: see the migration.
const (
	acquireSlotsSQL = "SELECT name, outcome, token, holder, remaining, ahead, invalid FROM pglock.acquire_slots(" +
		"$1::text[], $2::int[], $3::int[], $4::text::uuid, $5::text, $6::text::jsonb, $7::bigint, $8::bigint, $9::boolean)"
	joinSQL = "SELECT ticket, ahead, free, remaining FROM pglock.join_all(" +
		"$1::text[], $2::int[], $3::text, $4::bigint, $5::bigint, $6::text, $7::bigint, $8::boolean)"
	releasePermitsSQL = "SELECT a.name, r FROM unnest($1::text[]) AS a (name), pglock.release_permits(a.name, $2::bigint, $3::boolean) AS r"
	// revokeSQL releases the names that a request holds: the clean-up after an acquire whose answer was
	// never read.
	revokeSQL = "SELECT pglock.release_permits(g.name, g.token, $3::boolean) FROM (" +
		"SELECT l.name::text COLLATE \"C\" AS name, l.token FROM pglock.distributed_locks AS l WHERE l.name = ANY ($1::text[]) AND l.request = $2::text::uuid " +
		"UNION ALL SELECT p.name::text, p.token FROM pglock.lock_permits AS p WHERE p.name = ANY ($1::text[]) AND p.request = $2::text::uuid " +
		"ORDER BY 1) AS g"
	awaitGuardsSQL    = "SELECT pglock.await_guards($1::text, $2::bigint, $3::boolean)"
	keepPermitsSQL    = "SELECT pglock.keep_permits($1::text, $2::bigint, $3::int, $4::boolean)"
	upgradePermitsSQL = "SELECT NULL::text, outcome, token, holder, remaining, 0, false FROM pglock.upgrade_permits(" +
		"$1::text, $2::bigint, $3::text::uuid, $4::text, $5::text::jsonb, $6::bigint)"
	resizePermitsSQL = "SELECT pglock.resize_permits($1::text, $2::int, $3::boolean)"
)

// statements holds the statements of the protocol, rendered for a client's schema.
type statements struct {
	acquireFast, acquireFastBatch, peek, acquireFull, renew, checkGrants string
	release, releaseBatch, revoke                                        string
	join, leaveQueue, refreshTickets, deleteRows, quitQueue              string
	handoff, setLabels                                                   string
	grantedTo, lift, prune, deleteDeadRows                               string
	watch, revokeGrant, awaitGuards, requestRelease                      string

	acquireSlots, releasePermits, resizePermits, keepPermits, upgradePermits string
}

func newStatements(name string) statements {
	file := func(verb string) string { return schema.Render(fileSQL(verb), name) }
	return statements{
		acquireFast: file("acquire_fast"), acquireFastBatch: file("acquire_fast_batch"), peek: file("peek"), acquireFull: file("acquire_full"), renew: file("renew"), checkGrants: file("check_grants"),
		release: file("release"), releaseBatch: file("release_batch"), revoke: schema.Render(revokeSQL, name),
		join: schema.Render(joinSQL, name), leaveQueue: file("leave_queue"), refreshTickets: file("refresh_tickets"),
		deleteRows: schema.Render(deleteRowsSQL, name), quitQueue: schema.Render(quitQueueSQL, name),
		handoff: file("handoff"), setLabels: file("set_labels"),
		grantedTo: schema.Render(grantedToSQL, name), lift: schema.Render(liftSQL, name), prune: file("prune"),
		watch:       file("watch"),
		revokeGrant: file("revoke_grant"), awaitGuards: schema.Render(awaitGuardsSQL, name), requestRelease: file("request_release"),
		deleteDeadRows: schema.Render(deleteDeadRowsSQL, name),

		acquireSlots: schema.Render(acquireSlotsSQL, name), releasePermits: schema.Render(releasePermitsSQL, name),
		resizePermits: schema.Render(resizePermitsSQL, name),
		keepPermits:   schema.Render(keepPermitsSQL, name), upgradePermits: schema.Render(upgradePermitsSQL, name),
	}
}

// fileSQL returns the statement in the file of that name, for the default schema.
func fileSQL(verb string) string {
	text, err := sqlFiles.ReadFile("sql/" + verb + ".sql")
	if err != nil {
		panic(err) // it is embedded: only a missing file in the source fails
	}
	return string(text)
}
