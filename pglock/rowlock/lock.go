package rowlock

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
)

// ForUpdate locks the rows with these keys until tx ends, and returns them as they are then,
// in the order of the key. Nobody else can change, delete or lock them meanwhile, nor
// insert a row that references them.
//
// It waits for rows that others hold, until ctx is done; NoWait, SkipLocked and WithTimeout change
// that. Rows are locked in the order of the key, whatever the order here, so that calls do not
// run into deadlocks with each other.
//
// T is a struct that has a field for each column to be read, the key among them, as for
// pgx.RowToStructByName; a field without a db tag stands for the column of its name in snake case.
// K is a string, an integer, a [16]byte for uuid, a driver.Valuer or an encoding.TextMarshaler.
// A key that comes twice is an error, also when only the server takes two for the same (unless keys
// may be missing: then it is one row). Without
// keys it returns nothing and sends nothing.
//
// On success all rows are locked. They stay so until tx ends, or goes back to a savepoint that
// was set before. On failure none is, tx is as it was, also its lock_timeout, and can be
// used further (unless the connection broke, or ctx ended and tx is neither from pgx nor from
// sqltx). The error is a *NotAcquiredError (errors.Is ErrNotAcquired) when the wait ended: with
// ErrTimeout, ErrDeadlock, or ctx's error and cause; a *MissingError if a key has no row; a
// *TableError; or the server's. ErrTx and ErrInvalidOption mean that nothing was tried.
//
// At READ COMMITTED the rows are what the last holder has committed. At REPEATABLE READ and
// SERIALIZABLE a row that has changed since the snapshot is the server's error 40001.
func ForUpdate[T any, K comparable](ctx context.Context, tx Tx, table Table, keys []K, opts ...LockOption) ([]T, error) {
	return lock[T](ctx, tx, table, keys, "UPDATE", opts)
}

// ForNoKeyUpdate is ForUpdate for rows that will be changed, but neither deleted nor given another
// key: rows that reference them can be inserted meanwhile. It is what UPDATE itself takes.
func ForNoKeyUpdate[T any, K comparable](ctx context.Context, tx Tx, table Table, keys []K, opts ...LockOption) ([]T, error) {
	return lock[T](ctx, tx, table, keys, "NO KEY UPDATE", opts)
}

// ForShare is ForUpdate for rows that must not change: others can take it too. Two that then both
// change a row run into a deadlock: to read and then write, use ForNoKeyUpdate.
func ForShare[T any, K comparable](ctx context.Context, tx Tx, table Table, keys []K, opts ...LockOption) ([]T, error) {
	return lock[T](ctx, tx, table, keys, "SHARE", opts)
}

// ForKeyShare is ForShare for rows that must neither go nor get another key, while their other
// columns may change. It is what a foreign key takes.
func ForKeyShare[T any, K comparable](ctx context.Context, tx Tx, table Table, keys []K, opts ...LockOption) ([]T, error) {
	return lock[T](ctx, tx, table, keys, "KEY SHARE", opts)
}

func lock[T any, K comparable](ctx context.Context, tx Tx, table Table, keys []K, strength string, opts []LockOption) ([]T, error) {
	c := &call{tx: tx, table: table, begun: time.Now()}
	for _, o := range opts {
		if err := o.applyLock(&c.cfg); err != nil {
			return nil, err
		}
	}
	if err := c.check(); err != nil {
		return nil, err
	}
	s, err := shapeOf[T](c.cfg.columns, table.Key)
	if err != nil {
		return nil, err
	}
	texts, err := keyTexts(keys)
	if err != nil || len(keys) == 0 {
		return nil, err
	}
	c.names(s.names)
	q := c.render(lockSQL, []any{arrayText(texts)},
		":columns", quoteAll("t.", s.names), ":names", quoteAll("", s.names), ":strength", strength, ":wait", c.cfg.wait())
	return attempts(func() (rows []T, again bool, err error) {
		err = c.run(ctx, func(ctx context.Context) (err error) {
			rows, err = s.collect(ctx, tx, q)
			if err != nil {
				return err
			}
			again, err = complete(ctx, c, s, rows, keys, texts)
			return err
		})
		return rows, again, err
	})
}

// mostAttempts is how often the rows are looked for when others delete and insert them again.
const mostAttempts = 5

// attempts repeats try while it says that it should be tried again.
func attempts[T any](try func() (rows []T, again bool, err error)) (rows []T, err error) {
	for range mostAttempts {
		var again bool
		if rows, again, err = try(); err == nil {
			return rows, nil
		}
		if !again {
			break
		}
	}
	return nil, err
}

// complete checks that each key has one row. A row that was deleted while it was waited for,
// and inserted again, is in the table but not in the statement's snapshot: then again is true.
func complete[T any, K comparable](ctx context.Context, c *call, s shape[T], rows []T, keys []K, texts []string) (again bool, err error) {
	if s.repeated(rows) || len(rows) > len(keys) {
		return false, refuse(notUnique(c.table))
	}
	if c.cfg.allowMissing || len(rows) == len(keys) {
		return false, nil
	}
	absent, err := absentKeys(ctx, c, keys, texts)
	if err != nil {
		return false, err
	}
	return absent == nil, refuse(&MissingError{Table: c.table.String(), Keys: absent})
}

// absentKeys returns the keys that have no row now.
func absentKeys[K comparable](ctx context.Context, c *call, keys []K, texts []string) (absent []any, err error) {
	found, err := c.find(ctx, texts)
	if err != nil {
		return nil, err
	}
	taken := make([]bool, len(keys))
	for _, places := range found {
		if err := distinct(c.table, keys, places, taken); err != nil {
			return nil, refuse(err)
		}
	}
	for i, k := range keys {
		if !taken[i] {
			absent = append(absent, k)
		}
	}
	return absent, nil
}

// distinct marks the key that a row has, of whose places in the list one is expected.
func distinct[K comparable](table Table, keys []K, places []int32, taken []bool) error {
	if len(places) == 0 {
		return invalidOption("column %q of %s has an operator = in search_path that is not its type's own", table.Key, table)
	}
	if len(places) > 1 {
		return invalidOption("keys %v and %v are the same to column %q of %s", keys[places[0]-1], keys[places[1]-1], table.Key, table)
	}
	if taken[places[0]-1] {
		return notUnique(table)
	}
	taken[places[0]-1] = true
	return nil
}

func notUnique(table Table) error {
	return invalidOption("column %q of %s is not unique: fix the rest of its key with Where", table.Key, table)
}

// find returns the places in the list for each row that there is.
func (c *call) find(ctx context.Context, texts []string) ([][]int32, error) {
	q := c.render(findSQL, []any{arrayText(texts)})
	found, err := c.tx.Query(ctx, q.sql, q.args...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(found, pgx.RowTo[[]int32])
}

// check checks what does not depend on the server.
func (c *call) check() error {
	if err := c.table.check(); err != nil {
		return err
	}
	return c.cfg.check()
}

// names notes the columns of the statement.
func (c *call) names(columns []string) {
	c.columns = append(append(append([]string{c.table.Key}, columns...), whereColumns(c.cfg.conditions)...), c.cfg.orderColumns()...)
}

// collect runs the query.
func (s shape[T]) collect(ctx context.Context, tx Tx, q query) ([]T, error) {
	found, err := tx.Query(ctx, q.sql, q.args...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(found, s.row)
}

// wait is the end of the locking clause.
func (c *config) wait() string {
	switch {
	case c.noWait:
		return "NOWAIT"
	case c.skipLocked:
		return "SKIP LOCKED"
	}
	return ""
}
