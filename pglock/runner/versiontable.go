package runner

import (
	"cmp"
	"context"
	"errors"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/internal/errs"
	"github.com/pglock/pglock-go/internal/pgtx"
)

// noVersion is how golang-migrate writes that there is no version.
const noVersion = -1

// versionTable is a version table in golang-migrate's form: one row, or none.
//
// A run changes it by compare and swap: it replaces the row only if the row is still what the run
// has read. If two runs both believe that they hold the lock, one waits for the other's transaction
// and then changes nothing.
type versionTable struct {
	schema, table string
	quoted        string
}

// tableState is what a version table says, and the record beside it.
type tableState struct {
	exists  bool
	version int // noVersion without a row
	dirty   bool
	begun   int // if dirty: the migration that was begun, which is not the version if it is out of order

	recorded  bool // the record exists
	mayRecord bool // the role may write to it, or create it
	applied   map[uint]appliedFile
	mark      int // the highest version in applied, noVersion without one
}

// appliedFile is a row of the record, the table of the files that were applied. Both are empty if a
// person has inserted the row. Rows above the version are not read: another tool has undone them.
type appliedFile struct{ name, sum string }

func recordOf(table string) string { return strings.TrimSuffix(table, `"`) + recordSuffix + `"` }

const (
	recordSuffix  = "_files"
	maxIdentifier = 63 // bytes: the server cuts a longer name off
)

var errVersionChanged = errors.New("runner: another session changed the version")

// openVersionTable finds the schema of the version table, and names the lock after the table unless
// it has a name: Run and Wrap then exclude each other. The database is not part of the name,
// because locks and leases belong to one database. The table itself may be missing.
func (c *config) openVersionTable(ctx context.Context, pool *pgxpool.Pool) (versionTable, error) {
	t := versionTable{schema: c.schema, table: c.table}
	if t.schema == "" {
		var current *string
		if err := pool.QueryRow(ctx, "SELECT current_schema()").Scan(&current); err != nil {
			return t, errs.Errorf("runner: %w", pgtx.ExplainLogin(err))
		}
		if current == nil {
			return t, errs.InvalidOption("runner", "the search_path of the connection names no schema that exists: set one by WithVersionTable")
		}
		t.schema = *current
	}
	t.quoted = pgx.Identifier{t.schema, t.table}.Sanitize()
	c.name = cmp.Or(c.name, "migrations of "+t.quoted)
	return t, nil
}

const tableSQL = `
	SELECT f.oid IS NOT NULL,
		current_setting('transaction_read_only') = 'off' AND has_table_privilege(c.oid, 'UPDATE') AND
		CASE WHEN f.oid IS NULL THEN has_schema_privilege(n.oid, 'CREATE') ELSE has_table_privilege(f.oid, 'INSERT') END
	FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
		LEFT JOIN pg_class f ON f.relnamespace = n.oid AND f.relname = $3::text
	WHERE n.nspname = $1::text AND c.relname = $2::text`

// read reads the state, for which it needs no right except to read the tables. It reads the record
// after the version, because a row that is younger than the version does no harm.
func (t versionTable) read(ctx context.Context, pool *pgxpool.Pool) (tableState, error) {
	s := tableState{version: noVersion, mark: noVersion}
	err := pool.QueryRow(ctx, tableSQL, t.schema, t.table, t.table+recordSuffix).Scan(&s.recorded, &s.mayRecord)
	if errors.Is(err, pgx.ErrNoRows) {
		return s, nil
	}
	if err != nil {
		return s, errs.Errorf("runner: %w", pgtx.ExplainLogin(err))
	}
	s.exists = true
	rows, _ := pool.Query(ctx, "SELECT version, dirty FROM "+t.quoted) // ForEachRow returns its error
	var n int
	var version int64
	if _, err := pgx.ForEachRow(rows, []any{&version, &s.dirty}, func() error { n++; return nil }); err != nil {
		return s, t.wrap(err)
	}
	if n > 1 {
		return s, errs.Errorf("%w: %s has %d rows: a version table has at most one", ErrOtherSource, t.quoted, n)
	}
	if n == 1 {
		s.version, s.begun = int(version), int(version)
	}
	if !s.recorded {
		return s, nil
	}
	s.applied = map[uint]appliedFile{}
	var row appliedFile
	var dirty bool
	rows, _ = pool.Query(ctx, "SELECT version, name, checksum, dirty FROM "+recordOf(t.quoted)+" WHERE version <= $1", s.version)
	_, err = pgx.ForEachRow(rows, []any{&version, &row.name, &row.sum, &dirty}, func() error {
		s.applied[uint(version)], s.mark = row, max(s.mark, int(version))
		if dirty {
			s.dirty, s.begun = true, int(version)
		}
		return nil
	})
	return s, t.wrap(err)
}

// create creates the table, or the record if the table exists. The statement of a process that was
// killed may still create it.
func (t versionTable) create(ctx context.Context, pool *pgxpool.Pool, exists bool) error {
	sql := "CREATE TABLE IF NOT EXISTS " + t.quoted + " (version bigint NOT NULL PRIMARY KEY, dirty boolean NOT NULL)"
	if exists {
		sql = "CREATE TABLE IF NOT EXISTS " + recordOf(t.quoted) + " (version bigint NOT NULL PRIMARY KEY, name text NOT NULL DEFAULT '', " +
			"checksum text NOT NULL DEFAULT '', dirty boolean NOT NULL DEFAULT false, applied_at timestamptz NOT NULL DEFAULT now())"
	}
	return t.wrap(pgtx.Create(ctx, pool, sql))
}

// record adds a migration to the record in tx, in place of the rows above the version. It returns
// errVersionChanged if the migration is there.
func (t versionTable) record(ctx context.Context, tx pgx.Tx, at tableState, m migration, dirty bool) error {
	var tag pgconn.CommandTag
	_, err := tx.Exec(ctx, "DELETE FROM "+recordOf(t.quoted)+" WHERE version > $1", at.version)
	if err == nil {
		tag, err = tx.Exec(ctx, "INSERT INTO "+recordOf(t.quoted)+" (version, name, checksum, dirty) VALUES ($1, $2, $3, $4) ON CONFLICT DO NOTHING",
			int64(m.version), m.name, m.sum, dirty)
	}
	if err == nil && tag.RowsAffected() != 1 {
		return errVersionChanged
	}
	return t.wrap(err)
}

// replace changes the state from one to the other in tx. It returns errVersionChanged if the table
// does not say from. It waits for a transaction that has changed the row and has not ended.
func (t versionTable) replace(ctx context.Context, tx pgx.Tx, from, to tableState) error {
	var tag pgconn.CommandTag
	var err error
	switch {
	case to.version == noVersion:
		tag, err = tx.Exec(ctx, "DELETE FROM "+t.quoted+" WHERE version = $1 AND dirty = $2", from.version, from.dirty)
	case from.version == noVersion:
		// There is no row to wait for, so the table lock makes two writers wait for each other.
		if _, err = tx.Exec(ctx, "LOCK TABLE "+t.quoted+" IN SHARE ROW EXCLUSIVE MODE"); err == nil {
			tag, err = tx.Exec(ctx, "INSERT INTO "+t.quoted+" SELECT $1::bigint, $2::boolean WHERE NOT EXISTS (SELECT FROM "+t.quoted+")", to.version, to.dirty)
		}
	default:
		tag, err = tx.Exec(ctx, "UPDATE "+t.quoted+" SET version = $1, dirty = $2 WHERE version = $3 AND dirty = $4",
			to.version, to.dirty, from.version, from.dirty)
	}
	if err != nil {
		return t.wrap(err)
	}
	if tag.RowsAffected() != 1 {
		return errVersionChanged
	}
	return nil
}

// wrap adds the table's name to an error of the server, unless err is nil.
func (t versionTable) wrap(err error) error {
	if err == nil {
		return nil
	}
	return errs.Errorf("runner: version table %s: %w", t.quoted, err)
}
