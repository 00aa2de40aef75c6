package pgtx

import (
	"context"
	"time"

	"github.com/pglock/pglock-go/internal/backoff"
)

// Create runs a statement that creates something IF NOT EXISTS, while another session may create the
// same. One of the two may then fail with one of several errors, also several times: the server
// commits before it tells its other sessions that what they remember is old, and until then they
// neither find the new object nor can create it. Create tries again for a few tenths of a second.
func Create(ctx context.Context, db Execer, sql string) error {
	created := func(err error) bool {
		switch SQLState(err) {
		case UniqueViolation, DuplicateSchema, DuplicateTable, DuplicateObject: // the last: of the table's type
			return true
		}
		return false
	}
	pauses := backoff.Backoff{First: 5 * time.Millisecond, Max: 80 * time.Millisecond}
	return backoff.Retry(ctx, backoff.Policy{Transient: created, Pauses: pauses, Tries: 8}, func(ctx context.Context) error {
		_, err := db.Exec(ctx, sql)
		return err
	})
}
