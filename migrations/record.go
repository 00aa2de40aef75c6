package migrations

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// none is golang-migrate's word for no version.
const none = -1

// record is a version table, in golang-migrate's form: one row, or none.
//
// It is changed by comparing first: a row is replaced only if it is what the run has read.
// So of two runs that both believe that they hold the lock, one waits for the other's
// transaction and then changes nothing.
type record struct {
	schema, table string
	quoted        string
}

// position is what a version table says.
type position struct {
	exists  bool
	version int // none without a row
	dirty   bool
	name    string // of the migration that led here, if this package recorded it
	mayNote bool   // the role may comment on the table
}

// moved: the version table is not as it was read.
var errMoved = errors.New("migrations: the version was changed by somebody else")

// openRecord finds the table's schema.
func openRecord(ctx context.Context, pool *pgxpool.Pool, cfg runConfig) (record, error) {
	r := record{schema: cfg.schema, table: cfg.table}
	if r.schema == "" {
		var current *string
		if err := pool.QueryRow(ctx, "SELECT current_schema()").Scan(&current); err != nil {
			return r, fmt.Errorf("migrations: %w", err)
		}
		if current == nil {
			return r, invalidOption("no schema of the connection's search_path exists: name one, WithVersionTable")
		}
		r.schema = *current
	}
	r.quoted = tableName(r.schema, r.table)
	return r, nil
}

const recordSQL = `
	SELECT coalesce(obj_description(c.oid, 'pg_class'), ''), pg_has_role(c.relowner, 'USAGE')
	FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
	WHERE n.nspname = $1::text AND c.relname = $2::text`

// read tells where the database is. It needs no right but to read the table.
func (r record) read(ctx context.Context, pool *pgxpool.Pool) (position, error) {
	p := position{version: none}
	var note string
	err := pool.QueryRow(ctx, recordSQL, r.schema, r.table).Scan(&note, &p.mayNote)
	if errors.Is(err, pgx.ErrNoRows) {
		return p, nil
	}
	if err != nil {
		return p, fmt.Errorf("migrations: %w", err)
	}
	p.exists = true
	rows, err := pool.Query(ctx, "SELECT version, dirty FROM "+r.quoted)
	if err != nil {
		return p, fmt.Errorf("migrations: %s: %w", r.quoted, err)
	}
	var n int
	var version int64
	if _, err := pgx.ForEachRow(rows, []any{&version, &p.dirty}, func() error { n++; return nil }); err != nil {
		return p, fmt.Errorf("migrations: %s: %w", r.quoted, err)
	}
	if n > 1 {
		return p, fmt.Errorf("%w: %s has %d rows, a version table has one", ErrOtherSource, r.quoted, n)
	}
	if n == 1 {
		p.version = int(version)
		p.name = noted(note, p.version)
	}
	return p, nil
}

// The table's comment tells by which migration its version was reached: the same number may
// be another migration in another program.
const noteTag = "pglock: "

func noteOf(version int, name string) string { return fmt.Sprintf("%s%d_%s", noteTag, version, name) }

// noted returns the name in a comment, if it is about that version: other tools change the
// version without it.
func noted(note string, version int) string {
	name, ok := strings.CutPrefix(note, fmt.Sprintf("%s%d_", noteTag, version))
	if !ok {
		return ""
	}
	return name
}

// create makes the table. Two that do so at once may both try: one of them is told that it
// is there.
func (r record) create(ctx context.Context, pool *pgxpool.Pool) error {
	_, err := pool.Exec(ctx, "CREATE TABLE IF NOT EXISTS "+r.quoted+" (version bigint NOT NULL PRIMARY KEY, dirty boolean NOT NULL)")
	if err != nil && code(err) != "23505" && code(err) != "42P07" { // unique_violation, duplicate_table
		return fmt.Errorf("migrations: %s: %w", r.quoted, err)
	}
	return nil
}

// set replaces the position from by to, in tx, or returns errMoved. It waits for a
// transaction that is about to change it.
func (r record) set(ctx context.Context, tx pgx.Tx, from, to position) error {
	var tag pgconn.CommandTag
	var err error
	switch {
	case from.version == none && to.version == none:
		return nil
	case to.version == none:
		tag, err = tx.Exec(ctx, "DELETE FROM "+r.quoted+" WHERE version = $1 AND dirty = $2", from.version, from.dirty)
	case from.version == none:
		// There is no row to wait for: the table is locked instead, for writers.
		if _, err = tx.Exec(ctx, "LOCK TABLE "+r.quoted+" IN SHARE ROW EXCLUSIVE MODE"); err == nil {
			tag, err = tx.Exec(ctx, "INSERT INTO "+r.quoted+" SELECT $1::bigint, $2::boolean WHERE NOT EXISTS (SELECT FROM "+r.quoted+")", to.version, to.dirty)
		}
	default:
		tag, err = tx.Exec(ctx, "UPDATE "+r.quoted+" SET version = $1, dirty = $2 WHERE version = $3 AND dirty = $4",
			to.version, to.dirty, from.version, from.dirty)
	}
	if err != nil {
		return fmt.Errorf("migrations: %s: %w", r.quoted, err)
	}
	if tag.RowsAffected() != 1 {
		return errMoved
	}
	if !from.mayNote || to.dirty || to.name == "" {
		return nil
	}
	note, err := tx.Conn().PgConn().EscapeString(noteOf(to.version, to.name))
	if err == nil {
		_, err = tx.Exec(ctx, "COMMENT ON TABLE "+r.quoted+" IS '"+note+"'")
	}
	if err != nil {
		return fmt.Errorf("migrations: %s: %w", r.quoted, err)
	}
	return nil
}

// code returns the server's SQLSTATE, "" if it is no error of the server's.
func code(err error) string {
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		return pg.Code
	}
	return ""
}
