package doctor

import (
	"context"
	"fmt"
	"strings"

	"github.com/pglock/pglock-go/internal/schema"
)

// minVersion is the oldest major version that pglock supports.
const minVersion = 13

// server is what checkServer has read.
type server struct {
	role     string
	standby  bool
	settings map[string]setting
}

// setting is a row of pg_settings.
type setting struct{ Name, Value, Source string }

func (s server) is(name, value string) bool { return s.settings[name].Value == value }

// checkServer reads the settings that the other checks use too.
func (e *exam) checkServer(ctx context.Context) ([]Result, error) {
	if err := e.row(ctx, "SELECT current_user::text, pg_catalog.pg_is_in_recovery()", nil, &e.role, &e.standby); err != nil {
		return nil, err
	}
	read, err := rows[setting](ctx, e, `SELECT name, setting, source FROM pg_catalog.pg_settings WHERE name = ANY ($1)`, []string{
		"server_version", "server_version_num", "default_transaction_read_only", "fsync", "full_page_writes", "synchronous_commit",
		"synchronous_standby_names", "idle_in_transaction_session_timeout", "autovacuum", "track_counts", "max_connections",
		"superuser_reserved_connections", "reserved_connections"})
	if err != nil {
		return nil, err
	}
	e.settings = map[string]setting{}
	for _, s := range read {
		e.settings[s.Name] = s
	}
	var problems []Result
	if r, old := checkVersion(e.settings["server_version_num"].Value); old {
		problems = append(problems, r)
	}
	if e.standby {
		problems = append(problems, fail("the server is a standby, which is read-only",
			"connect to the primary: name all hosts and set target_session_attrs=read-write"))
	}
	if s := e.settings["default_transaction_read_only"]; s.Value == "on" {
		problems = append(problems, fail(fmt.Sprintf("default_transaction_read_only is on (source: %s)", s.Source), e.readOnlyRemedy(s.Source)))
	}
	return orOK(problems, "PostgreSQL %s, accepts writes", e.settings["server_version"].Value)
}

// checkVersion takes server_version_num.
func checkVersion(number string) (Result, bool) {
	var n int
	if _, err := fmt.Sscan(number, &n); err != nil || n/10000 >= minVersion {
		return Result{}, false
	}
	return fail(fmt.Sprintf("PostgreSQL %d is too old", n/10000), fmt.Sprintf("use PostgreSQL %d or later", minVersion)), true
}

func (e *exam) readOnlyRemedy(source string) string {
	const reset = " RESET default_transaction_read_only"
	switch {
	case source == "client":
		return "remove it from the connection string or PGOPTIONS"
	case source == "database":
		return "ALTER DATABASE " + schema.Quote(e.Conn.Database) + reset
	case source == "user":
		return "ALTER ROLE " + schema.Quote(e.role) + reset
	case strings.Contains(source, "user"):
		return "ALTER ROLE " + schema.Quote(e.role) + " IN DATABASE " + schema.Quote(e.Conn.Database) + reset
	}
	return "set it to off in the server's configuration, or find out why the server is to be read-only"
}

// checkDurability: leases set synchronous_commit themselves where it is off.
func (e *exam) checkDurability(context.Context) ([]Result, error) {
	var problems []Result
	if e.is("fsync", "off") {
		problems = append(problems, fail("fsync is off: after a crash of the machine, two holders may have the same lock and the same token",
			"set fsync = on and reload the server"))
	}
	if e.is("full_page_writes", "off") {
		problems = append(problems, warn("full_page_writes is off: a crash of the machine may damage the tables",
			"set full_page_writes = on unless the file system writes pages whole"))
	}
	standbys, commit := e.settings["synchronous_standby_names"].Value, e.settings["synchronous_commit"].Value
	switch {
	case standbys != "" && (commit == "local" || commit == "off"):
		problems = append(problems, warn(fmt.Sprintf("synchronous_commit is %s: a failover may lose the last grants, although there are synchronous standbys", commit),
			"ALTER ROLE "+schema.Quote(e.role)+" SET synchronous_commit = on"))
	case commit == "off":
		problems = append(problems, warn("synchronous_commit is off: leases are safe, but a crash may lose the last transactions of DoTx and ticks that were recorded",
			"ALTER ROLE "+schema.Quote(e.role)+" SET synchronous_commit = on"))
	}
	if standbys == "" {
		standbys = "none"
	}
	return orOK(problems, "fsync on, synchronous_commit %s, synchronous standbys: %s", commit, standbys)
}

func (e *exam) checkIdleTimeout(context.Context) ([]Result, error) {
	ms := e.settings["idle_in_transaction_session_timeout"].Value
	if ms != "0" {
		return ok("idle_in_transaction_session_timeout is %s ms", ms), nil
	}
	return []Result{warn("idle_in_transaction_session_timeout is 0: a forgotten transaction slows hot locks down until it ends",
		"ALTER DATABASE "+schema.Quote(e.Conn.Database)+" SET idle_in_transaction_session_timeout = '1min'")}, nil
}

// checkConnections: any role sees the sessions of others, but not what kind they are.
func (e *exam) checkConnections(ctx context.Context) ([]Result, error) {
	var used, usedByRole, usedInDatabase, roleLimit, databaseLimit, limit int64
	err := e.row(ctx, `
		SELECT count(*) FILTER (WHERE a.datid IS NOT NULL), count(*) FILTER (WHERE a.usename = current_user), count(*) FILTER (WHERE a.datname = current_database()),
		       (SELECT r.rolconnlimit FROM pg_catalog.pg_roles AS r WHERE r.rolname = current_user),
		       (SELECT d.datconnlimit FROM pg_catalog.pg_database AS d WHERE d.datname = current_database()),
		       current_setting('max_connections')::int8 - current_setting('superuser_reserved_connections')::int8
		           - coalesce(current_setting('reserved_connections', true), '0')::int8
		FROM pg_catalog.pg_stat_activity AS a`, nil, &used, &usedByRole, &usedInDatabase, &roleLimit, &databaseLimit, &limit)
	if err != nil {
		return nil, err
	}
	var problems []Result
	for _, l := range []struct {
		what        string
		used, limit int64 // -1: no limit
		remedy      string
	}{
		{"the server", used, limit, "raise max_connections, use a pooler, or lower the pools of the clients"},
		{fmt.Sprintf("role %q", e.role), usedByRole, roleLimit, "ALTER ROLE " + schema.Quote(e.role) + " CONNECTION LIMIT with a larger number"},
		{fmt.Sprintf("database %q", e.Conn.Database), usedInDatabase, databaseLimit, "ALTER DATABASE " + schema.Quote(e.Conn.Database) + " CONNECTION LIMIT with a larger number"},
	} {
		if l.limit >= 0 && l.limit-l.used < e.Limits.Headroom {
			problems = append(problems, warn(fmt.Sprintf("%d of %d connections of %s are in use: a client of pglock uses up to 5", l.used, l.limit, l.what), l.remedy))
		}
	}
	return orOK(problems, "%d of %d in use", used, limit)
}
