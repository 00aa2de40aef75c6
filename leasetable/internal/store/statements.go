package store

import (
	"embed"
	"strings"

	"github.com/pglock/pglock-go/internal/schema"
)

//go:embed sql/*.sql
var sqlFiles embed.FS

// Statements that need no file.
const (
	// grantedToSQL reports whether the grant of a request holds the lock.
	grantedToSQL = "SELECT EXISTS (SELECT FROM pglock.distributed_locks AS l WHERE l.name = $1::text AND l.request = $2::text::uuid " +
		"AND l.holder IS NOT NULL AND l.expires_at > clock_timestamp())"

	// liftSQL raises the sequence to the token of a name's row, and returns the highest token that
	// was handed out.
	liftSQL = "SELECT pglock.lift_fencing_tokens($1::text)"

	// deleteRowsSQL deletes a client's unused rows for some names from the queue.
	deleteRowsSQL = "DELETE FROM pglock.lock_waiters WHERE client = $1::text AND name = ANY ($2::text[]) AND ticket = ANY ($3::bigint[])"

	// quitQueueSQL deletes all of a client's rows from the queue.
	quitQueueSQL = "DELETE FROM pglock.lock_waiters WHERE client = $1::text"

	// deleteDeadRowsSQL deletes the queue rows of dead clients. It waits for no row lock.
	deleteDeadRowsSQL = "DELETE FROM pglock.lock_waiters WHERE ctid = ANY (ARRAY(SELECT w.ctid FROM pglock.lock_waiters AS w " +
		"WHERE w.expires_at < clock_timestamp() - interval '1 min' LIMIT 10000 FOR UPDATE SKIP LOCKED))"
)

// The statements of permits are functions of the schema: see the migration.
const (
	acquirePermitsSQL = "SELECT outcome, token, holder, remaining, ahead, invalid FROM pglock.acquire_permits(" +
		"$1::text, $2::int, $3::int, $4::text::uuid, $5::text, $6::text::jsonb, $7::bigint, $8::bigint, $9::boolean)"
	releasePermitsSQL = "SELECT pglock.release_permits($1::text, $2::bigint, $3::boolean)"
	revokePermitsSQL  = "SELECT pglock.release_permits(p.name, p.token, $3::boolean) FROM pglock.lock_permits AS p " +
		"WHERE p.name = $1::text AND p.request = $2::text::uuid AND p.holder IS NOT NULL"
	resizePermitsSQL = "SELECT pglock.resize_permits($1::text, $2::int, $3::boolean)"
)

// inPermits turns a statement about grants into one for those in lock_permits, which are neither
// revoked nor asked for.
var inPermits = strings.NewReplacer("pglock.distributed_locks", "pglock.lock_permits",
	"l.revoked_token = w.token", "false", "l.revoked_reason", "NULL::text", "l.release_request", "NULL::text")

// permitForm returns a statement about grants, for those in lock_permits.
func permitForm(verb string) string { return inPermits.Replace(SQL(verb)) }

// statements holds the statements of the protocol, rendered for a client's schema.
type statements struct {
	acquireFast, acquireFastBatch, peek, acquireFull, renew, checkGrants string
	release, releaseBatch, revoke                                        string
	joinQueue, leaveQueue, refreshTickets, deleteRows, quitQueue         string
	handoff, adopt                                                       string
	get, grantedTo, lift, prune, deleteDeadRows                          string
	list, watch, revokeGrant, awaitGuards, requestRelease                string

	acquirePermits, releasePermits, revokePermits, renewPermits, checkPermits, resizePermits string
}

func newStatements(name string) statements {
	file := func(verb string) string { return schema.Render(SQL(verb), name) }
	return statements{
		acquireFast: file("acquire_fast"), acquireFastBatch: file("acquire_fast_batch"), peek: file("peek"), acquireFull: file("acquire_full"), renew: file("renew"), checkGrants: file("check_grants"),
		release: file("release"), releaseBatch: file("release_batch"), revoke: file("revoke"),
		joinQueue: file("join_queue"), leaveQueue: file("leave_queue"), refreshTickets: file("refresh_tickets"),
		deleteRows: schema.Render(deleteRowsSQL, name), quitQueue: schema.Render(quitQueueSQL, name),
		handoff: file("handoff"), adopt: file("adopt"),
		get: file("get"), grantedTo: schema.Render(grantedToSQL, name), lift: schema.Render(liftSQL, name), prune: file("prune"),
		list: file("list"), watch: file("watch"),
		revokeGrant: file("revoke_grant"), awaitGuards: file("await_guards"), requestRelease: file("request_release"),
		deleteDeadRows: schema.Render(deleteDeadRowsSQL, name),

		acquirePermits: schema.Render(acquirePermitsSQL, name), releasePermits: schema.Render(releasePermitsSQL, name),
		revokePermits: schema.Render(revokePermitsSQL, name), resizePermits: schema.Render(resizePermitsSQL, name),
		renewPermits: schema.Render(permitForm("renew"), name), checkPermits: schema.Render(permitForm("check_grants"), name),
	}
}

// SQL returns the statement in the file of that name, for the default schema.
func SQL(verb string) string {
	text, err := sqlFiles.ReadFile("sql/" + verb + ".sql")
	if err != nil {
		panic(err) // it is embedded: only a missing file in the source fails
	}
	return string(text)
}
