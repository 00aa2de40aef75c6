package fencing

import (
	"context"
	"fmt"

	"github.com/pglock/pglock-go/internal/schema"
)

const advanceSQL = "SELECT pglock.advance($1::text, $2::bigint)"

// Advance raises the mark of a resource to token in tx. Use it for a resource that has no token
// column: a file, a device, an account at another company. The resource may have any name of 1 to
// 512 bytes, not only that of a lock.
//
// On success the resource had no higher mark, and gets none before tx ends. The same token may come
// again, but an older one gets a *StaleError with the resource's mark as Current, because marks
// never go down.
//
// Advance compares the token with earlier ones, not with the lock: use Check or Bind for that. A
// mark that was raised by mistake excludes all lower tokens until its row in fencing_high_water is
// deleted.
//
// A mark is kept forever, so when the table has grown to 1 GB, a resource without a mark gets
// ErrFull. (The owner of the tables sets the limit by replacing the function high_water_limit.)
// Delete only marks of resources that no holder of an older token can still write.
//
// A refusal aborts tx, and the errors are those of Bind. At REPEATABLE READ and SERIALIZABLE, a
// mark that was raised after the snapshot is ErrSnapshot: roll back and begin again. WithSchema
// sets the schema of the marks.
func Advance(ctx context.Context, tx Tx, resource string, token Token, opts ...SchemaOption) error {
	if tx == nil {
		return errNilTx
	}
	return advance(ctx, tx, resource, token, opts)
}

// advance also works on a pool, in a separate transaction.
func advance(ctx context.Context, db DB, resource string, token Token, opts []SchemaOption) error {
	if err := checkGrant(resource, token); err != nil {
		return err
	}
	cfg, err := newProtection(db, opts)
	if err != nil {
		return err
	}
	_, err = db.Exec(ctx, schema.Render(advanceSQL, cfg.schema), resource, int64(token))
	return explainCall(cfg.schema, fmt.Sprintf("advance %q to %d", resource, token), err)
}
