package doctor

import (
	"context"
	"fmt"

	"github.com/pglock/pglock-go/internal/schema"
)

func quoteSchema(e *exam) string { return schema.Quote(e.Schema) }

// hotTables change with each grant and each wait.
var hotTables = []string{"distributed_locks", "lock_waiters", "lock_permits", "fencing_high_water"}

type tableStats struct {
	Table            string
	Dead, Live, Size int64
	Disabled         bool // autovacuum, by an option of the table
}

func (e *exam) tableStats(ctx context.Context) ([]tableStats, error) {
	return rows[tableStats](ctx, e, `
		SELECT c.relname::text, coalesce(s.n_dead_tup, 0), coalesce(s.n_live_tup, 0), pg_catalog.pg_table_size(c.oid),
		       EXISTS (SELECT FROM pg_catalog.pg_options_to_table(c.reloptions) AS o WHERE o.option_name = 'autovacuum_enabled' AND NOT o.option_value::boolean)
		FROM pg_catalog.pg_class AS c LEFT JOIN pg_catalog.pg_stat_all_tables AS s ON s.relid = c.oid
		WHERE c.relnamespace = pg_catalog.to_regnamespace($1) AND c.relname = ANY ($2) AND c.relkind = 'r'
		ORDER BY 1`, quoteSchema(e), hotTables)
}

// checkDeadRows: versions that a transaction can still see make every acquire of a hot name read
// them.
func (e *exam) checkDeadRows(ctx context.Context) ([]Result, error) {
	if !e.usable {
		return nil, nil
	}
	stats, err := e.tableStats(ctx)
	if err != nil {
		return nil, err
	}
	const rowSize = 1000 // of a row with its free space and its part of the index, rather too large
	var problems []Result
	found := ""
	for _, t := range stats {
		switch {
		case t.Dead > e.Limits.DeadRows+5*t.Live:
			problems = append(problems, warn(fmt.Sprintf("%s has %d dead rows and %d live ones: hot locks get slower", t.Table, t.Dead, t.Live),
				"end what holds them back (see transactions, prepared transactions, replication slots), then VACUUM "+e.name(t.Table)))
		case t.Size > e.Limits.BloatedSize && t.Size > 10*rowSize*max(t.Live, 1):
			problems = append(problems, warn(fmt.Sprintf("%s has %d MB for %d rows", t.Table, t.Size>>20, t.Live),
				"VACUUM FULL "+e.name(t.Table)+" at a quiet time: it blocks all locks while it runs"))
		}
		if found != "" {
			found += ", "
		}
		found += fmt.Sprintf("%s %d dead, %d kB", t.Table, t.Dead, t.Size>>10)
	}
	return orOK(problems, "%s", found)
}

func (e *exam) checkAutovacuum(ctx context.Context) ([]Result, error) {
	var problems []Result
	for _, name := range []string{"autovacuum", "track_counts"} {
		if e.is(name, "off") {
			problems = append(problems, fail(name+" is off: the tables grow without bound", "set "+name+" = on and reload the server"))
		}
	}
	if e.usable {
		stats, err := e.tableStats(ctx)
		if err != nil {
			return problems, err
		}
		for _, t := range stats {
			if t.Disabled {
				problems = append(problems, fail("autovacuum is off for "+t.Table+", which grows without bound", "ALTER TABLE "+e.name(t.Table)+" RESET (autovacuum_enabled)"))
			}
		}
	}
	return orOK(problems, "on")
}

type transaction struct {
	PID                                int32
	Role, State, Kind, ApplicationName string
	Seconds                            float64
	XIDs                               int64
}

// checkTransactions looks for what keeps old versions in this database: transactions, and standbys
// with hot_standby_feedback and without a slot. A role sees only its own sessions, unless it is a
// member of pg_read_all_stats.
func (e *exam) checkTransactions(ctx context.Context) ([]Result, error) {
	open, err := rows[transaction](ctx, e, `
		SELECT a.pid, coalesce(a.usename::text, ''), coalesce(a.state, ''), coalesce(a.backend_type, ''), coalesce(a.application_name, ''),
		       coalesce(extract(epoch FROM clock_timestamp() - a.xact_start), 0)::float8,
		       greatest(age(a.backend_xmin), age(a.backend_xid))::int8
		FROM pg_catalog.pg_stat_activity AS a
		WHERE a.pid <> pg_catalog.pg_backend_pid() AND (a.backend_xmin IS NOT NULL OR a.backend_xid IS NOT NULL)
		  AND (a.datname = current_database() AND a.backend_type <> 'autovacuum worker' OR a.backend_type = 'walsender')
		ORDER BY 6 DESC`)
	if err != nil {
		return nil, err
	}
	var hidden int64
	err = e.row(ctx, "SELECT count(*) FROM pg_catalog.pg_stat_activity AS a WHERE a.query = '<insufficient privilege>' AND a.datname = current_database()", nil, &hidden)
	if err != nil {
		return nil, err
	}
	var problems []Result
	for _, t := range open {
		age := seconds(t.Seconds)
		switch {
		case t.Kind == "walsender" && t.XIDs > e.Limits.XIDs:
			problems = append(problems, warn(fmt.Sprintf("standby %q keeps the versions of the last %d transactions", t.ApplicationName, t.XIDs),
				"end long queries on it, or set hot_standby_feedback = off there"))
		case t.Kind != "walsender" && age > e.Limits.LongTransaction:
			problems = append(problems, warn(fmt.Sprintf("process %d of role %q (%s, %q) has been in a transaction for %v: hot locks get slower until it ends", t.PID, t.Role, t.State, t.ApplicationName, round(age)),
				fmt.Sprintf("SELECT pg_terminate_backend(%d), if it may be interrupted", t.PID)))
		}
	}
	found := fmt.Sprintf("%d open, none for longer than %v", len(open), e.Limits.LongTransaction)
	if hidden == 0 {
		return orOK(problems, "%s", found)
	}
	if len(problems) > 0 {
		return problems, nil
	}
	return []Result{{Level: OK, Found: fmt.Sprintf("%s; %d sessions of other roles can't be seen", found, hidden),
		Remedy: "GRANT pg_read_all_stats TO " + schema.Quote(e.role) + " shows them"}}, nil
}

type prepared struct {
	GID     string
	Seconds float64
}

func (e *exam) checkPrepared(ctx context.Context) ([]Result, error) {
	open, err := rows[prepared](ctx, e, `
		SELECT p.gid, extract(epoch FROM clock_timestamp() - p.prepared)::float8 FROM pg_catalog.pg_prepared_xacts AS p
		WHERE p.database = current_database() ORDER BY 2 DESC`)
	if err != nil {
		return nil, err
	}
	var problems []Result
	for _, p := range open {
		if age := seconds(p.Seconds); age > e.Limits.LongTransaction {
			problems = append(problems, warn(fmt.Sprintf("transaction %q has been prepared for %v: hot locks get slower until it ends", p.GID, round(age)),
				"COMMIT PREPARED or ROLLBACK PREPARED "+schema.Literal(p.GID)))
		}
	}
	return orOK(problems, "%d, none for longer than %v", len(open), e.Limits.LongTransaction)
}

type slot struct {
	Name   string
	Active bool
	XIDs   int64
}

// checkSlots: only xmin keeps versions of the lock tables; a logical slot's catalog_xmin does not.
func (e *exam) checkSlots(ctx context.Context) ([]Result, error) {
	slots, err := rows[slot](ctx, e, "SELECT s.slot_name::text, s.active, coalesce(age(s.xmin), 0)::int8 FROM pg_catalog.pg_replication_slots AS s ORDER BY 3 DESC")
	if err != nil {
		return nil, err
	}
	var problems []Result
	for _, s := range slots {
		if s.XIDs <= e.Limits.XIDs {
			continue
		}
		remedy := "end long queries on its standby, or set hot_standby_feedback = off there"
		if !s.Active {
			remedy = fmt.Sprintf("SELECT pg_drop_replication_slot(%s), if its standby does not come back", schema.Literal(s.Name))
		}
		problems = append(problems, warn(fmt.Sprintf("slot %q keeps the versions of the last %d transactions", s.Name, s.XIDs), remedy))
	}
	return orOK(problems, "%d, none keeps more than %d transactions", len(slots), e.Limits.XIDs)
}
