package leasetable

import (
	"embed"
	"slices"
	"strings"

	"github.com/pglock/pglock-go/internal/schema"
)

//go:embed sql/*.sql
var sqlFiles embed.FS

// shortSQL has the statements that need no file. Those of permits and of several names are
// functions of the schema: see the migration.
var shortSQL = map[string]string{
	// granted_to reports whether the grant of a request holds the lock.
	"granted_to": "SELECT EXISTS (SELECT FROM pglock.distributed_locks AS l WHERE l.name = $1::text AND l.request = $2::text::uuid " +
		"AND l.holder IS NOT NULL AND l.expires_at > clock_timestamp()) OR EXISTS (SELECT FROM pglock.lock_permits AS p " +
		"WHERE p.name = $1::text AND p.request = $2::text::uuid AND p.holder IS NOT NULL AND p.expires_at > clock_timestamp())",

	// lift raises the sequence to the token of a name's row, and returns the highest token that was
	// handed out.
	"lift": "SELECT pglock.lift_fencing_tokens($1::text)",

	// delete_rows deletes unused rows from the queue: clients, names and tickets.
	"delete_rows": "DELETE FROM pglock.lock_waiters AS w USING unnest((SELECT $1::text[]), (SELECT $2::text[]), (SELECT $3::bigint[])) " +
		"AS a (client, name, ticket) WHERE w.name = a.name AND w.client = a.client AND w.ticket = a.ticket AND w.name = ANY ((SELECT $2::text[])::text[])",

	// quit_queue deletes all of a client's rows from the queue, and then notifies the next waiters
	// of the names that are free: one of the rows may have been the head.
	"quit_queue": "WITH gone AS (DELETE FROM pglock.lock_waiters WHERE client = $1::text OR starts_with(client, $1::text || '" + schema.AllSuffix + "/') " +
		"RETURNING name, state) SELECT pglock.wake_next(l.name, l.ticket, l.capacity - l.in_use) FROM pglock.distributed_locks AS l " +
		"WHERE l.name = ANY (ARRAY(SELECT name FROM gone WHERE state = 'queued')) AND $2::boolean AND l.expires_at <= clock_timestamp()",

	// delete_dead_rows deletes the queue rows of dead clients. It waits for no row lock.
	"delete_dead_rows": "DELETE FROM pglock.lock_waiters WHERE ctid = ANY (ARRAY(SELECT w.ctid FROM pglock.lock_waiters AS w " +
		"WHERE w.expires_at <= clock_timestamp() - interval '1 min' LIMIT 10000 FOR UPDATE SKIP LOCKED))",

	"acquire_slots": "SELECT name, outcome, token, holder, remaining, ahead, invalid FROM pglock.acquire_slots(" +
		"$1::text[], $2::int[], $3::int[], $4::text::uuid, $5::text, $6::text::jsonb, $7::bigint, $8::bigint, $9::boolean)",
	"release_permits": "SELECT a.name, r FROM unnest($1::text[]) AS a (name), pglock.release_permits(a.name, $2::bigint, $3::boolean) AS r",

	// revoke releases the names that a request holds: the clean-up after an acquire whose answer
	// was never read.
	"revoke": "SELECT pglock.release_permits(g.name, g.token, $3::boolean) FROM (" +
		"SELECT l.name::text COLLATE \"C\" AS name, l.token FROM pglock.distributed_locks AS l WHERE l.name = ANY ($1::text[]) AND l.request = $2::text::uuid " +
		"UNION ALL SELECT p.name::text, p.token FROM pglock.lock_permits AS p WHERE p.name = ANY ($1::text[]) AND p.request = $2::text::uuid " +
		"ORDER BY 1) AS g",
	"leave_queue":     "SELECT pglock.leave_queue($1::text[], $2::text, $3::bigint, $4::boolean)",
	"watch":           "SELECT pglock.watch($1::text, $2::text, $3::bigint * interval '1 microsecond')",
	"nested_wait":     "SELECT coalesce(pglock.nested_wait($1::text[], $2::int[], $3::bigint[], $4::text, $5::text::uuid, $6::bigint, $7::text[]), '')",
	"end_nested_wait": "SELECT pglock.end_nested_wait($1::text::uuid)",
	"await_guards":    "SELECT pglock.await_guards($1::text, $2::bigint, $3::boolean)",
	"keep_permits":    "SELECT pglock.keep_permits($1::text, $2::bigint, $3::int, $4::boolean)",
	"upgrade_permits": "SELECT NULL::text, outcome, token, holder, remaining, 0, false FROM pglock.upgrade_permits(" +
		"$1::text, $2::bigint, $3::text::uuid, $4::text, $5::text::jsonb, $6::bigint)",
	"resize_permits": "SELECT pglock.resize_permits($1::text, $2::int, $3::boolean)",
}

// statements returns all statements of the protocol, rendered for a client's schema, by the names
// of their files or in shortSQL. A revocation is recorded. Added is acquire_batch: acquire_fast_batch and acquire_new for the names of
// a batch, some of which are new, with one commit. A test checks the names that the methods of a Table use.
func statements(name string) map[string]string {
	all := schema.Statements(sqlFiles, name)
	for verb, sql := range shortSQL {
		all[verb] = schema.Render(sql, name)
	}
	all["revoke_grant"] = "SELECT r.token, CASE WHEN r.done THEN " + schema.Quote(name) +
		".record_action('revoked', $1::text, $2::bigint, $3::text) ELSE false END, r.notified FROM (" + all["revoke_grant"] + ") AS r"
	_, created, _ := strings.Cut(all["acquire_new"], "), created")
	all["acquire_batch"] = "WITH known (name, token, remaining) AS (" + all["acquire_fast_batch"] + "), asked (name, holder, request, labels, us, ticket) AS (" +
		"SELECT a.name, coalesce(a.holder, ($2::text[])[1]), a.request, coalesce(a.labels, ($4::text[])[1])::jsonb, coalesce(a.us, ($5::bigint[])[1]), " +
		"coalesce(a.ticket, ($6::bigint[])[1]) FROM unnest((SELECT $1::text[]), (SELECT $2::text[]), (SELECT $3::text[]::uuid[]), (SELECT $4::text[]), " +
		"(SELECT $5::bigint[]), (SELECT $6::bigint[])) AS a (name, holder, request, labels, us, ticket)), created" + created +
		" UNION ALL SELECT k.name, k.token, k.remaining, false FROM known AS k"
	return all
}

// Settings returns a list of expressions for a SELECT that makes a session ready for the statements: for
// its transaction if the expression local is true. The session then finds operators and functions in
// pg_catalog only, because those that a role creates in another schema of its path would run as this one
// where their types fit better. And its plans find each row by an index, one name after the other. Without
// that, a plan that the session keeps reads whole tables, if they were small when it was made, or if a
// role or a database has turned other ways off.
func Settings(local string) string {
	list := make([]string, 0, 9)
	for name, value := range map[string]string{
		"search_path": "pg_catalog", "enable_nestloop": "on", "enable_indexscan": "on", "enable_bitmapscan": "on", "enable_tidscan": "on",
		"enable_seqscan": "off", "enable_hashjoin": "off", "enable_mergejoin": "off", "jit": "off",
	} {
		list = append(list, "pg_catalog.set_config('"+name+"', '"+value+"', "+local+")")
	}
	slices.Sort(list)
	return strings.Join(list, ", ")
}
