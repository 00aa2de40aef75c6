package fencing

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"sync"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglock/pglock-go/internal/schema"
)

//go:embed sql/check.sql
var checkSQL string

// rendered holds check.sql for each schema in use.
var rendered sync.Map // schema name → statement

// Check holds the grant f until the end of tx, which must be a transaction on
// the database of the locks, from any pool and in any process.
//
// On success nobody else can be granted the lock before tx ends, also if the
// lease ends meanwhile: what tx writes is the current holder's. So that a holder
// paused in tx can't keep the lock for ever, the server ends tx when it has been
// idle for as long as the lease had left (a shorter
// idle_in_transaction_session_timeout of the caller's stays).
//
// If the grant is not the current one, or has ended, it returns a *StaleError
// (errors.Is ErrStale). tx stays usable and holds no lock, but a write in it is
// not protected: roll back.
//
// At REPEATABLE READ and SERIALIZABLE it should be the transaction's first statement:
// where the snapshot is older than the lease's last renewal or than a takeover, it may
// be impossible to tell, and the error is then ErrSnapshot: roll back and begin anew.
//
// It takes one round trip. ctx bounds it; as with any pgx call, a ctx that ends
// during it closes the connection. Any other error is the server's.
func Check(ctx context.Context, tx pgx.Tx, f Fence) error {
	if f.Schema == "" {
		f.Schema = schema.Default
	}
	var current bool
	var newest Token
	var isolation string
	err := tx.QueryRow(ctx, statement(f.Schema), f.Name, int64(f.Token)).Scan(&current, &newest, &isolation)
	var pg *pgconn.PgError
	switch {
	case errors.As(err, &pg) && (pg.Code == "42P01" || pg.Code == "3F000"): // undefined_table, invalid_schema_name
		return &schema.Error{Kind: ErrSchemaMissing, Name: f.Schema, Want: schema.Version, Cause: pg}
	case errors.As(err, &pg) && pg.Code == "40001": // serialization_failure: the row has changed since
		return fmt.Errorf("%w: check of %v: %w", ErrSnapshot, f, err)
	case err != nil:
		return fmt.Errorf("fencing: check of %v: %w", f, err)
	case !current && isolation != "read committed" && newest == f.Token:
		return fmt.Errorf("%w: check of %v at %s", ErrSnapshot, f, isolation)
	case !current:
		return &StaleError{Resource: f.Name, Token: f.Token, Current: newest}
	}
	return nil
}

func statement(name string) string {
	if s, ok := rendered.Load(name); ok {
		return s.(string)
	}
	s, _ := rendered.LoadOrStore(name, schema.Render(checkSQL, name))
	return s.(string)
}
