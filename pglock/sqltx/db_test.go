package sqltx_test

import (
	"context"
	"database/sql"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglock/pglock-go/advisory"
	"github.com/pglock/pglock-go/fencing"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/pglock/sqltx"
)

// TestDBRunsStatements on a *sql.DB with one connection, which returns to the pool after each.
func TestDBRunsStatements(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.db.SetMaxOpenConns(1)
	db := sqltx.WrapDB(f.db)
	free := func(what string) {
		t.Helper()
		if n := f.db.Stats().InUse; n != 0 {
			t.Errorf("%s: %d connections in use", what, n)
		}
	}
	tag, err := db.Exec(t.Context(), "SELECT n FROM generate_series(1, 3) n")
	if err != nil || tag.RowsAffected() != 3 {
		t.Errorf("Exec: %v, %v", tag, err)
	}
	free("Exec")
	if n := value[[]string](t, db, "SELECT ARRAY['a', $1]", "b"); len(n) != 2 || n[1] != "b" {
		t.Errorf("QueryRow: %v", n)
	}
	free("QueryRow")
	if err := db.QueryRow(t.Context(), "SELECT 1 WHERE false").Scan(nil); !errors.Is(err, pgx.ErrNoRows) {
		t.Errorf("no row: %v", err)
	}
	free("no row")
	found, err := db.Query(t.Context(), "SELECT n FROM generate_series(1, 3) n")
	ok(t, err)
	if n, err := pgx.CollectRows(found, pgx.RowTo[int]); err != nil || len(n) != 3 {
		t.Errorf("Query: %v, %v", n, err)
	}
	free("Query")
	if found, err = db.Query(t.Context(), "SELECT 1"); err != nil || found.Conn() != nil {
		t.Errorf("Query: %v", err)
	}
	found.Close()
	found.Close()
	free("Close")
	for name, scan := range map[string]func(r pgx.Rows) error{
		"Scan":   func(r pgx.Rows) error { return r.Scan(new(int)) },
		"Values": func(r pgx.Rows) error { r.Close(); _, err := r.Values(); return err },
	} {
		found, err := db.Query(t.Context(), "SELECT 'x'")
		if err != nil || !found.Next() {
			t.Fatal(err)
		}
		if err := scan(found); err == nil && name == "Scan" {
			t.Errorf("%s: no error", name)
		}
		free(name)
	}
	var pg *pgconn.PgError
	if _, err := db.Exec(t.Context(), "nonsense"); !errors.As(err, &pg) {
		t.Errorf("nonsense: %v", err)
	}
	short, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := db.Exec(short, "SELECT pg_sleep(60)"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("deadline: %v", err)
	}
	free("deadline")
	if n := value[int](t, db, "SELECT 1"); n != 1 {
		t.Error(n)
	}
}

func TestDBErrors(t *testing.T) {
	t.Parallel()
	other := sql.OpenDB(alien{liberal: true})
	defer other.Close()
	f := newFixture(t)
	f.db.SetMaxOpenConns(1)
	busy, err := f.db.Conn(t.Context())
	ok(t, err)
	defer busy.Close()
	short, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	for name, tc := range map[string]struct {
		ctx context.Context
		db  fencing.DB
		is  error
		any bool
	}{
		"another driver": {t.Context(), sqltx.WrapDB(other), advisory.ErrDriver, false},
		"busy":           {short, sqltx.WrapDB(f.db), context.DeadlineExceeded, false},
		"nil":            {t.Context(), sqltx.WrapDB(nil), nil, true},
	} {
		_, execErr := tc.db.Exec(tc.ctx, "SELECT 1")
		found, queryErr := tc.db.Query(tc.ctx, "SELECT 1")
		if found.Next() || found.Err() == nil {
			t.Errorf("%s: the rows have no error", name)
		}
		for call, err := range map[string]error{"Exec": execErr, "Query": queryErr, "Scan": tc.db.QueryRow(tc.ctx, "SELECT 1").Scan(nil)} {
			if err == nil || !tc.any && !errors.Is(err, tc.is) {
				t.Errorf("%s, %s: %v", name, call, err)
			}
		}
	}
}

// TestDBProtectsATable: functions that take a pool of pgx take a DB.
func TestDBProtectsATable(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	schema := pgtest.Schema(t, f.pool)
	table := pgx.Identifier{schema, "kept"}.Sanitize()
	f.exec(f.pool, "CREATE TABLE "+table+" (id int)")
	ok(t, fencing.Protect(t.Context(), sqltx.WrapDB(f.db), table, fencing.WithSchema(schema)))
	if _, err := f.db.ExecContext(t.Context(), "INSERT INTO "+table+" VALUES (1)"); !errors.Is(fencing.Explain(err), fencing.ErrUnfenced) {
		t.Errorf("%v", err)
	}
}
