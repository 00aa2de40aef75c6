package fencing

import (
	"context"
	"fmt"
)

const (
	protectSQL   = "SELECT pglock.protect(to_regclass($1::text), $2::text, $3::boolean, $4::boolean, $5::text)"
	unprotectSQL = "SELECT pglock.unprotect(to_regclass($1::text))"
)

// Protect makes the server refuse writes to a table that come without a grant, or with
// an older one than the row was written with. It holds for SQL that knows nothing of
// locks, an ORM's or a person's, until Unprotect. The table's name is written as in SQL:
// accounts, shop.accounts, "Odd Name"; pgx.Identifier's Sanitize quotes.
//
// It adds a token column, unless it is there, and triggers. The column belongs to the
// triggers: a value that a write gives it has no effect. Rows that are there keep an
// empty token, which anybody with a grant may write.
//
// Where the table is protected so already it does nothing, and needs no lock; so services
// may call it when they start. It then sees to partitions that were attached since. With
// other options than before it is ErrProtected. Other errors: ErrNoTable (missing, a view,
// a partition, part of an inheritance tree), ErrColumn, ErrInvalidOption, ErrPrivilege
// (the table's owner may protect it, with the rights that the package comment tells),
// ErrSchemaMissing. After an error nothing is changed.
//
// It locks the table, for a moment and against readers too: under load, set
// lock_timeout in db, which may be a pool, a connection or a transaction.
func Protect(ctx context.Context, db DB, table string, opts ...Option) error {
	p, err := newProtection(opts)
	if err != nil {
		return err
	}
	_, err = db.Exec(ctx, render(protectSQL, p.schema), table, p.column, p.permissive, p.perTable, p.namedBy)
	return explainTable(p.schema, "protect", table, err)
}

// Unprotect gives a table back as it was before Protect: without the triggers, and
// without the column if Protect added it. Where the table is not protected it does
// nothing. The errors are those of Protect.
func Unprotect(ctx context.Context, db DB, table string, opts ...SchemaOption) error {
	p, err := newSchemaConfig(opts)
	if err != nil {
		return err
	}
	_, err = db.Exec(ctx, render(unprotectSQL, p.schema), table)
	return explainTable(p.schema, "unprotect", table, err)
}

// explainTable is explainCall where the table's name may be no name at all.
func explainTable(schemaName, doing, table string, err error) error {
	doing = fmt.Sprintf("%s %s", doing, table)
	if code := sqlState(err); code == "42602" || code == "42601" { // invalid_name, syntax_error
		return fmt.Errorf("%w: %s: %w", ErrNoTable, doing, err)
	}
	return explainCall(schemaName, doing, err)
}
