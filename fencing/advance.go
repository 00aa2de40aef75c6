package fencing

import (
	"context"
	"fmt"
)

const advanceSQL = "SELECT pglock.advance($1::text, $2::bigint)"

// Advance raises the mark of a resource to the token, in tx, for what has no token
// column: a file, a device, an account at another company. The resource is any name
// of 1 to 512 bytes; it need not be that of a lock.
//
// On success no higher token was there, and none gets there before tx ends. The same
// token may come again. An older one gets a *StaleError, with the resource's mark as
// Current. Marks never go down.
//
// The token is compared with earlier ones, not with the lock: use Check or Bind for
// that. A mark that was raised by mistake keeps all lower tokens out until somebody
// deletes its row in fencing_high_water.
//
// A refusal aborts tx. The errors are those of Bind; at REPEATABLE READ and SERIALIZABLE
// a mark that was raised since the snapshot is ErrSnapshot: roll back and begin anew.
// WithSchema names the schema of the marks.
func Advance(ctx context.Context, tx Tx, resource string, token Token, opts ...SchemaOption) error {
	if tx == nil {
		return ErrNoTransaction
	}
	return advance(ctx, tx, resource, token, opts)
}

// advance also works on a pool, where it is a transaction of its own.
func advance(ctx context.Context, db DB, resource string, token Token, opts []SchemaOption) error {
	if err := checkName(resource); err != nil {
		return err
	}
	if err := checkToken(token); err != nil {
		return err
	}
	cfg, err := newSchemaConfig(opts)
	if err != nil {
		return err
	}
	_, err = db.Exec(ctx, render(advanceSQL, cfg.schema), resource, int64(token))
	return explainCall(cfg.schema, fmt.Sprintf("advance of %q to %d", resource, token), err)
}
