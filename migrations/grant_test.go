package migrations_test

import (
	"errors"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/internal/locktest"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/internal/schema"
	"github.com/pglock/pglock-go/migrations"
)

// rights lists the rights of a role in a schema.
func rights(t *testing.T, pool *pgxpool.Pool, role, name string) []string {
	t.Helper()
	return scanAll(t, pool, `
		SELECT format('%s on %s', a.privilege_type, object) FROM (
			SELECT 'schema' AS object, nspacl AS acl FROM pg_namespace WHERE nspname = $2
			UNION ALL SELECT relname, relacl FROM pg_class WHERE relnamespace = quote_ident($2)::regnamespace
			UNION ALL SELECT relname || '.' || attname, attacl FROM pg_attribute JOIN pg_class c ON c.oid = attrelid WHERE relnamespace = quote_ident($2)::regnamespace
			UNION ALL SELECT proname, proacl FROM pg_proc WHERE pronamespace = quote_ident($2)::regnamespace
		) AS o, aclexplode(acl) AS a JOIN pg_roles r ON r.oid = a.grantee
		WHERE r.rolname = $1 ORDER BY 1`, role, name)
}

// The rights of lock users and writers. The tests of leasetable and fencing run as such roles, and
// show that these rights are enough.
var (
	writerRights = []string{
		"EXECUTE on advance", "EXECUTE on bind", "EXECUTE on check_fence", "EXECUTE on guard", "EXECUTE on require_bound",
		"USAGE on schema",
	}
	readerRights = []string{
		"EXECUTE on advisory_key", "EXECUTE on highest_token", "EXECUTE on lift_fencing_tokens", "EXECUTE on pglock_oldest_client", "EXECUTE on pglock_schema_version", "EXECUTE on unsafe_server",
		"SELECT on distributed_locks", "SELECT on fencing_tokens", "SELECT on lock_permits", "SELECT on lock_waiters", "SELECT on locks_held", "SELECT on locks_waiting",
		"SELECT on nested_waits", "SELECT on once_started", "SELECT on operator_actions", "SELECT on pglock_migrations", "SELECT on schedules", "USAGE on schema",
	}
	userRights = append(slices.Clone(writerRights),
		"DELETE on distributed_locks", "INSERT on distributed_locks", "SELECT on distributed_locks", "UPDATE on distributed_locks",
		"DELETE on lock_waiters", "INSERT on lock_waiters", "SELECT on lock_waiters", "UPDATE on lock_waiters",
		"DELETE on lock_permits", "INSERT on lock_permits", "SELECT on lock_permits", "UPDATE on lock_permits",
		"SELECT on locks_held", "SELECT on locks_waiting", "SELECT on schedules", "SELECT on pglock_migrations", "USAGE on fencing_tokens",
		"DELETE on once_keys", "INSERT on once_keys", "SELECT on once_keys", "UPDATE on once_keys", "SELECT on once_started",
		"EXECUTE on highest_token", "EXECUTE on evidence_bound", "EXECUTE on lift_sequence", "EXECUTE on lift_fencing_tokens", "EXECUTE on once_claim", "EXECUTE on raise_pruned", "EXECUTE on above_pruned",
		"EXECUTE on next_fencing_token", "EXECUTE on token_follows", "EXECUTE on wake_next", "EXECUTE on wake_each", "EXECUTE on advisory_key", "EXECUTE on pglock_oldest_client", "EXECUTE on pglock_schema_version", "EXECUTE on unsafe_server",
		"EXECUTE on head_weight", "EXECUTE on commit_durably", "EXECUTE on commit_lazily", "EXECUTE on by_index", "EXECUTE on next_version", "EXECUTE on queue", "EXECUTE on head_is_silent", "EXECUTE on add_room", "EXECUTE on wake_for_room", "EXECUTE on free_expired_permits",
		"EXECUTE on share_grant", "EXECUTE on create_free", "EXECUTE on check_slots", "EXECUTE on judge_slot", "EXECUTE on judge_slots", "EXECUTE on change_ticket",
		"EXECUTE on lock_gates", "EXECUTE on grant_slots", "EXECUTE on wake_opened", "EXECUTE on acquire_slots", "EXECUTE on release_permits", "EXECUTE on await_guards",
		"EXECUTE on keep_permits", "EXECUTE on upgrade_permits", "EXECUTE on resize_permits", "EXECUTE on next_ticket",
		"EXECUTE on record_action", "SELECT on operator_actions",
		"EXECUTE on acquire", "EXECUTE on renew", "EXECUTE on release", "EXECUTE on wait_ticket", "EXECUTE on leave", "EXECUTE on watch",
		"EXECUTE on check_client", "EXECUTE on leave_queue",
		"EXECUTE on nested_wait", "EXECUTE on end_nested_wait", "EXECUTE on find_deadlock", "EXECUTE on wait_names", "EXECUTE on wait_edges", "EXECUTE on stuck_edges", "EXECUTE on cycle_words",
		"DELETE on nested_waits", "INSERT on nested_waits", "SELECT on nested_waits", "UPDATE on nested_waits",
		"DELETE on scheduled_jobs", "INSERT on scheduled_jobs", "SELECT on scheduled_jobs", "UPDATE on scheduled_jobs", "EXECUTE on job_state", "EXECUTE on trigger_job",
	)
)

func TestUpGrantsWhatRolesNeedAndNoMore(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	admin := pgtest.PoolOn(t, url)
	slices.Sort(userRights)
	user, writer, reader := `user "`+strconv.Itoa(os.Getpid())+`"`, "writer "+strconv.Itoa(os.Getpid()), "looker "+strconv.Itoa(os.Getpid())
	asUser, asWriter := locktest.PoorRole(t, url, user), locktest.PoorRole(t, url, writer)
	locktest.PoorRole(t, url, reader)
	name := pgtest.SchemaName(t)
	in := migrations.WithSchema(name)
	var all sync.WaitGroup
	for range 5 { // as replicas call it
		all.Go(func() {
			if err := migrations.Up(t.Context(), admin, in, migrations.WithUser(user), migrations.WithWriter(writer), migrations.WithReader(reader)); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if got := rights(t, admin, user, name); !slices.Equal(got, userRights) {
		t.Errorf("a user has\n%s, want\n%s", strings.Join(got, "\n"), strings.Join(userRights, "\n"))
	}
	if got := rights(t, admin, writer, name); !slices.Equal(got, writerRights) {
		t.Errorf("a writer has\n%s, want\n%s", strings.Join(got, "\n"), strings.Join(writerRights, "\n"))
	}
	if got := rights(t, admin, reader, name); !slices.Equal(got, readerRights) {
		t.Errorf("a reader has\n%s, want\n%s", strings.Join(got, "\n"), strings.Join(readerRights, "\n"))
	}
	if err := migrations.Up(t.Context(), admin, in, migrations.WithoutRole(reader)); err != nil {
		t.Error(err)
	}
	if got := rights(t, admin, reader, name); len(got) > 0 {
		t.Errorf("a role whose rights were taken away has %q", got)
	}
	if err := migrations.Up(t.Context(), asUser, in); err != nil {
		t.Errorf("a service that migrates when it starts: %v", err)
	}
	for what, sql := range map[string]string{
		"reads locks": "SELECT * FROM distributed_locks", "writes locks": "UPDATE distributed_locks SET holder = 'me'",
		"draws tokens": "SELECT nextval('fencing_tokens')", "reads marks": "SELECT * FROM fencing_high_water",
	} {
		conn, err := asWriter.Acquire(t.Context())
		locktest.OK(t, err)
		if _, err := conn.Exec(t.Context(), "SET search_path TO "+schema.Quote(name)); err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Exec(t.Context(), sql); err == nil {
			t.Errorf("a writer %s", what)
		}
		conn.Release()
	}
}

// TestReadingLocksGivesNoRightToHoldThem: USAGE and SELECT, as for monitoring.
func TestReadingLocksGivesNoRightToHoldThem(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	admin := pgtest.PoolOn(t, url)
	role := "reader of locks " + strconv.Itoa(os.Getpid())
	reader := locktest.PoorRole(t, url, role)
	locktest.OK(t, migrations.Up(t.Context(), admin))
	locktest.Exec(t, admin, "GRANT USAGE ON SCHEMA pglock TO PUBLIC; GRANT SELECT ON pglock.distributed_locks TO PUBLIC")
	locktest.Scan[int](t, reader, "SELECT count(*) FROM pglock.distributed_locks")
	for _, call := range []string{"check_fence('n', 1)", "guard('n', 1)", "bind('n', 1)", "advance('n', 1)", "grant_user('" + role + "')", "grant_writer('" + role + "')"} {
		if _, err := reader.Exec(t.Context(), "SELECT pglock."+call); err == nil || !strings.Contains(err.Error(), "42501") {
			t.Errorf("%s: %v", call, err)
		}
	}
}

func TestInvalidGrants(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	admin := pgtest.PoolOn(t, url)
	role := "nobody " + strconv.Itoa(os.Getpid())
	poor := locktest.PoorRole(t, url, role)
	if err := migrations.Up(t.Context(), admin, migrations.WithUser("no such role")); !errors.Is(err, migrations.ErrNoRole) {
		t.Errorf("a role that does not exist: %v", err)
	}
	if v, err := migrations.Version(t.Context(), admin); v != schema.Version || err != nil {
		t.Errorf("the tables are at version %d, %v", v, err)
	}
	locktest.OK(t, migrations.Up(t.Context(), admin, migrations.WithUser(role)))
	other := role + " else"
	locktest.PoorRole(t, url, other)
	for _, o := range []migrations.Option{migrations.WithUser(other), migrations.WithWriter(other)} {
		if err := migrations.Up(t.Context(), poor, o); !errors.Is(err, migrations.ErrPrivilege) {
			t.Errorf("by a role that may not grant: %v", err)
		}
	}
	for _, o := range []migrations.Option{migrations.WithUser(""), migrations.WithWriter("")} {
		if err := migrations.Up(t.Context(), admin, o); !errors.Is(err, migrations.ErrInvalidOption) {
			t.Errorf("no name: %v", err)
		}
	}
	if err := migrations.Down(t.Context(), admin, migrations.WithUser(role)); err != nil {
		t.Errorf("Down: %v", err)
	}
}
