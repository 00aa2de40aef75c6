package fencing

import (
	"context"
	"fmt"

	"github.com/pglock/pglock-go/internal/errs"
	"github.com/pglock/pglock-go/internal/pgtx"
	"github.com/pglock/pglock-go/internal/schema"
)

const (
	protectSQL   = "SELECT pglock.protect(to_regclass($1::text), $2::text, $3::boolean, $4::text)"
	unprotectSQL = "SELECT pglock.unprotect(to_regclass($1::text))"
)

// Protect makes the server refuse writes to a table without a grant, or with an older grant than
// the one that wrote the row. This applies to all SQL, also to that of an ORM or a person, until
// Unprotect. Write the table's name as in SQL: accounts, shop.accounts, "Odd Name".
// pgx.Identifier.Sanitize quotes it.
//
// Protect adds triggers, and a token column if it is missing. Only the triggers write the column: a
// value in a statement has no effect. Existing rows keep an empty token, which a holder of any
// grant may overwrite.
//
// If the table is already protected like that, Protect changes nothing and acquires no lock, so a
// service may call it when it starts. Protect compares the triggers of the table and of its
// partitions with the expected ones. If one is missing, disabled or not pglock's, or if a partition
// was attached since, it creates all of them again. With other options than before it returns
// ErrProtected.
//
// The error is ErrNoTable if the table is missing, a view, a partition, part of an inheritance
// tree, or has a foreign table as a partition. It is ErrPrivilege unless the role owns the table
// and has the rights of the function grant_owner. Other errors are ErrColumn, ErrInvalidOption,
// ErrSchemaMissing and the server's. After an error nothing has changed.
//
// Protect locks the table for a moment, also against readers: under load, set lock_timeout in db,
// which may be a pool, a connection or a transaction. ctx bounds the call.
func Protect(ctx context.Context, db DB, table string, opts ...Option) error {
	p, err := newProtection(db, opts)
	if err != nil {
		return err
	}
	_, err = db.Exec(ctx, schema.Render(protectSQL, p.schema), table, p.column, p.permissive, p.namedBy)
	return explainTable(p.schema, "protect", table, err)
}

// Unprotect removes the triggers that Protect has created, and the token column if Protect added
// it. If the table is not protected, Unprotect changes nothing. The errors are those of Protect.
func Unprotect(ctx context.Context, db DB, table string, opts ...SchemaOption) error {
	p, err := newProtection(db, opts)
	if err != nil {
		return err
	}
	_, err = db.Exec(ctx, schema.Render(unprotectSQL, p.schema), table)
	return explainTable(p.schema, "unprotect", table, err)
}

// explainTable is explainCall for a call with a table's name, which may be invalid SQL.
func explainTable(schemaName, operation, table string, err error) error {
	call := fmt.Sprintf("%s %q", operation, table)
	if code := pgtx.SQLState(err); code == pgtx.InvalidName || code == pgtx.SyntaxError {
		return errs.Errorf("%w: %s: %w", ErrNoTable, call, err)
	}
	return explainCall(schemaName, call, err)
}
