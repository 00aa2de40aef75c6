package fencing

import (
	"context"
	"fmt"
)

const bindSQL = "SELECT pglock.bind($1::text, $2::bigint)"

// Bind does what Check does, and lets tx write to protected tables as that grant until
// it ends: rows are stamped with its token. Nothing else in the session is changed.
//
// A transaction may bind the grants of several locks, for instance to move money
// between two accounts. A table that was protected with NamedBy then takes for each
// row the grant of the row's own lock; any other table takes the one that was bound last.
// A rollback to a savepoint before Bind undoes it.
//
// The errors are those of Check. Unlike Check, a refusal aborts tx: whoever drops the
// error can write nothing all the same.
func Bind(ctx context.Context, tx Tx, f Fence) error {
	if err := ready(tx, f); err != nil {
		return err
	}
	_, err := tx.Exec(ctx, render(bindSQL, f.schemaName()), f.Name, int64(f.Token))
	return explainCall(f.schemaName(), fmt.Sprintf("bind of %v", f), err)
}
