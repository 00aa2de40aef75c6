package fencing

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"

	"github.com/pglock/pglock-go/internal/errs"
	"github.com/pglock/pglock-go/internal/schema"
)

const (
	checkSQL = "SELECT $1::text, $2::bigint, is_current, newest, isolation FROM pglock.check_fence($1::text, $2::bigint)"
	bindSQL  = "SELECT pglock.bind($1::text, $2::bigint)"

	checkAllSQL = "SELECT g.name, g.token, c.is_current, c.newest, c.isolation " +
		"FROM jsonb_to_recordset($1::text::jsonb) AS g (name text, token bigint) CROSS JOIN LATERAL pglock.check_fence(g.name, g.token) AS c " +
		"ORDER BY c.is_current, g.name LIMIT 1" // the first one that is refused, after all are checked
	bindAllSQL = "SELECT pglock.bind(g.name, g.token) FROM jsonb_to_recordset($1::text::jsonb) AS g (name text, token bigint)"
)

// Check verifies that f is the current grant of its lock, and keeps it current until tx ends. tx
// must be a transaction on the database of the locks, from any pool and in any process.
//
// On success the lock is not granted to another holder before tx ends, even if the lease expires
// meanwhile: what tx writes is the current holder's. So that a holder that is paused in tx does not
// keep the lock forever, the server ends tx when it has been idle for as long as the lease had
// left. (A shorter idle_in_transaction_session_timeout of the caller's stays in force.) Explain
// turns the error of the next call on tx into ErrPaused.
//
// If f is not the current grant, or has expired or been released, the error is a *StaleError
// (errors.Is ErrStale). tx stays usable, but writes in it are not protected: roll back. Protected
// tables need Bind, which does the same and more.
//
// At REPEATABLE READ and SERIALIZABLE, Check should be the first statement of the transaction. If
// the snapshot is older than the lease's last renewal or than a takeover, Check may be unable to
// decide, and the error is ErrSnapshot: roll back and begin again.
//
// The error is ErrInvalidFence if no grant can have that fence, and ErrNoTransaction if tx is nil;
// Check then sends nothing. It is ErrSchemaMissing if the schema has no lock tables, and
// ErrPrivilege if the role lacks a right. Any other error is the server's, such as that of a
// read-only transaction, which can't keep a grant.
//
// Check takes one round trip. ctx bounds it. If ctx ends during the call, pgx closes the
// connection.
func Check(ctx context.Context, tx Tx, f Fence) error { return CheckAll(ctx, tx, f) }

// CheckAll is Check for several grants, in one round trip. It succeeds if all of them are current,
// and keeps all of them current until tx ends. A *StaleError has one that is not.
//
// The errors are those of Check. The error is ErrInvalidFence also if there are no fences, or if
// they are of several schemas.
func CheckAll(ctx context.Context, tx Tx, fences ...Fence) error {
	q, err := newGrantsQuery(tx, fences, checkSQL, checkAllSQL)
	if err != nil {
		return err
	}
	var f Fence
	var current bool
	var newest Token
	var isolation string
	err = tx.QueryRow(ctx, q.sql, q.args...).Scan(&f.Name, &f.Token, &current, &newest, &isolation)
	switch {
	case err != nil:
		return explainCall(q.schema, "check "+q.grants, err)
	case !current && isolation != "read committed" && newest <= f.Token:
		return errs.Errorf("%w: check %q at %s", ErrSnapshot, f, isolation)
	case !current:
		return &StaleError{Resource: f.Name, Token: f.Token, Current: newest}
	}
	return nil
}

// Bind checks the grant f as Check does, and lets tx write to protected tables as that grant until
// tx ends: the triggers write its token to the rows. Bind changes nothing else in the session.
//
// A transaction may bind the grants of several locks, for instance to move money between two
// accounts. In a table with NamedBy, each row then needs the grant of its own lock. In other tables
// the grant that was bound last applies. A rollback to a savepoint before Bind undoes it.
//
// The errors are those of Check. Unlike Check, a refusal aborts tx: a caller that ignores the error
// can't write either.
func Bind(ctx context.Context, tx Tx, f Fence) error { return BindAll(ctx, tx, f) }

// BindAll is Bind for several grants, in one round trip: see Bind. The errors are those of
// CheckAll. A refusal of one grant aborts tx.
func BindAll(ctx context.Context, tx Tx, fences ...Fence) error {
	q, err := newGrantsQuery(tx, fences, bindSQL, bindAllSQL)
	if err != nil {
		return err
	}
	_, err = tx.Exec(ctx, q.sql, q.args...)
	return explainCall(q.schema, "bind "+q.grants, err)
}

// grantsQuery is a statement about some grants of one schema.
type grantsQuery struct {
	schema, grants string // grants is for the text of errors
	sql            string
	args           []any
}

// newGrantsQuery returns one if there is one grant, and otherwise several, which gets the grants as
// JSON. It returns an error if tx is nil, or if no grants can have the fences.
func newGrantsQuery(tx Tx, fences []Fence, one, several string) (q grantsQuery, err error) {
	if tx == nil {
		return q, errNilTx
	}
	if len(fences) == 0 {
		return q, errs.Errorf("%w: there is none: must be at least one", ErrInvalidFence)
	}
	type row struct {
		Name  string `json:"name"`
		Token Token  `json:"token"`
	}
	rows := make([]row, len(fences))
	for i, f := range fences {
		if err := f.check(); err != nil {
			return q, err
		}
		if q.schema = cmp.Or(q.schema, f.schemaName()); f.schemaName() != q.schema {
			return q, errs.Errorf("%w: %q and %q are of different schemas", ErrInvalidFence, fences[0], f)
		}
		rows[i] = row{f.Name, f.Token}
	}
	q.grants, q.sql, q.args = fmt.Sprintf("%q", fences[0]), schema.Render(one, q.schema), []any{rows[0].Name, int64(rows[0].Token)}
	if len(rows) > 1 {
		text, err := json.Marshal(rows)
		if err != nil {
			return q, errs.Errorf("%w: %w", ErrInvalidFence, err)
		}
		q.grants += fmt.Sprintf(" and %d more", len(rows)-1)
		q.sql, q.args = schema.Render(several, q.schema), []any{string(text)}
	}
	return q, nil
}
