package rowlock

import (
	"context"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglock/pglock-go/advisory"
	"github.com/pglock/pglock-go/internal/pgtx"
)

// Tx is the caller's transaction: a pgx.Tx, or a *sql.Tx through package sqltx.
type Tx = advisory.Tx

// ForUpdate locks the rows with these keys until tx ends, and returns them by key, as they are once
// they are locked. Other transactions can't change, delete or lock them meanwhile, nor insert a row
// that references them.
//
// It waits until ctx is done for rows that other transactions hold; NoWait, SkipLocked and
// WithTimeout change that. Rows are locked in the order of the key, whatever the order of the
// arguments, so that calls do not deadlock with each other.
//
// T is a struct with a field for each column to read, as for pgx.RowToStructByName. A field without
// a db tag stands for the column of its name in snake case. K is a string, an integer, a [16]byte
// for uuid, a driver.Valuer or an encoding.TextMarshaler. A key that is passed twice is an error,
// also if only the server finds two keys equal. Without keys it returns no row and sends nothing.
//
// On success all rows are locked until tx ends, or is rolled back to a savepoint that was set
// before. On failure no row is locked, and tx and its lock_timeout are unchanged, so that tx
// remains usable (unless the connection broke, or ctx ended and tx is neither from pgx nor from
// sqltx). The error is a *NotAcquiredError (errors.Is ErrNotAcquired) if the wait ended: with
// ErrTimeout, ErrDeadlock, or ctx's error and cause. It is a *MissingError if a key has no row, a
// *TableError, or the server's. ErrTx and ErrInvalidOption mean that nothing was attempted.
//
// At READ COMMITTED the rows are what the last holder has committed. At REPEATABLE READ and
// SERIALIZABLE a row that has changed since the snapshot is the server's error 40001.
func ForUpdate[T any, K comparable](ctx context.Context, tx Tx, table Table, keys []K, opts ...LockOption) (ByKey[K, T], error) {
	return lock[T](ctx, tx, table, keys, "UPDATE", opts)
}

// ForNoKeyUpdate is ForUpdate for rows that are to be changed, but neither deleted nor given
// another key: rows that reference them can be inserted meanwhile. UPDATE itself locks like this.
func ForNoKeyUpdate[T any, K comparable](ctx context.Context, tx Tx, table Table, keys []K, opts ...LockOption) (ByKey[K, T], error) {
	return lock[T](ctx, tx, table, keys, "NO KEY UPDATE", opts)
}

// ForShare is ForUpdate for rows that must not change; several transactions can hold it. Two
// holders that then both change a row deadlock: to read and then write, use ForNoKeyUpdate.
func ForShare[T any, K comparable](ctx context.Context, tx Tx, table Table, keys []K, opts ...LockOption) (ByKey[K, T], error) {
	return lock[T](ctx, tx, table, keys, "SHARE", opts)
}

// ForKeyShare is ForShare for rows that must not be deleted nor given another key, while their
// other columns may change. A foreign key locks like this.
func ForKeyShare[T any, K comparable](ctx context.Context, tx Tx, table Table, keys []K, opts ...LockOption) (ByKey[K, T], error) {
	return lock[T](ctx, tx, table, keys, "KEY SHARE", opts)
}

func lock[T any, K comparable](ctx context.Context, tx Tx, table Table, keys []K, strength string, opts []LockOption) (none ByKey[K, T], err error) {
	c := &call{tx: tx, table: table, begun: time.Now()}
	for _, o := range opts {
		if err := o.applyLock(&c.cfg); err != nil {
			return none, err
		}
	}
	if err := c.check(); err != nil {
		return none, err
	}
	columns, err := columnsOf[T]()
	if err != nil {
		return none, err
	}
	texts, err := keyTexts(keys)
	if err != nil || len(keys) == 0 {
		return none, err
	}
	c.setColumns(columns)
	aliases, names := renamed(columns)
	q := c.render(lockSQL, []any{arrayText(texts)},
		":columns", quoteAll(columns), ":aliases", aliases, ":names", names, ":strength", strength, ":wait", c.cfg.wait())
	return attempts(func() (rows ByKey[K, T], again bool, err error) {
		err = c.run(ctx, func(ctx context.Context) error {
			found, err := collect(ctx, tx, q, locate(pgx.RowToStructByName[T]))
			if err != nil {
				return err
			}
			rows, again, err = complete(ctx, c, found, keys, texts)
			return err
		})
		return rows, again, err
	})
}

// attempts repeats try, up to maxAttempts times, while it fails with again.
func attempts[R any](try func() (result R, again bool, err error)) (none R, err error) {
	for range maxAttempts {
		result, again, failure := try()
		if failure == nil {
			return result, nil
		}
		if err = failure; !again {
			break
		}
	}
	return none, err
}

// complete returns the rows by key, and checks that each key has one. A row that was deleted during
// the wait, and inserted again, is in the table but not in the statement's snapshot: then again is
// true.
func complete[T any, K comparable](ctx context.Context, c *call, found []located[T], keys []K, texts []string) (rows ByKey[K, T], again bool, err error) {
	seen := make([]bool, len(keys))
	for _, l := range found {
		if err := distinct(c.table, keys, l.positions, seen); err != nil {
			return rows, false, refuse(err)
		}
		rows.add(keys[l.positions[0]-1], l.row)
	}
	if c.cfg.allowMissing || rows.Len() == len(keys) {
		return rows, false, nil
	}
	absent, err := absentKeys(ctx, c, keys, texts)
	if err != nil {
		return rows, false, err
	}
	return rows, absent == nil, refuse(&MissingError{Table: c.table.String(), Keys: absent})
}

// absentKeys returns the keys that have no row now.
func absentKeys[K comparable](ctx context.Context, c *call, keys []K, texts []string) (absent []any, err error) {
	rows, err := c.find(ctx, texts)
	if err != nil {
		return nil, err
	}
	found := make([]bool, len(keys))
	for _, positions := range rows {
		if err := distinct(c.table, keys, positions, found); err != nil {
			return nil, refuse(err)
		}
	}
	for i, k := range keys {
		if !found[i] {
			absent = append(absent, k)
		}
	}
	return absent, nil
}

// distinct marks the key of a row as found. positions are those of the row's key in keys, counted
// from 1; there must be exactly one.
func distinct[K comparable](table Table, keys []K, positions []int32, found []bool) error {
	switch {
	case len(positions) == 0:
		return invalidOption("column %q of %s is compared by an operator = of search_path that is not its type's own", table.Key, table)
	case len(positions) > 1:
		return invalidOption("keys %v and %v are equal in column %q of %s", keys[positions[0]-1], keys[positions[1]-1], table.Key, table)
	case found[positions[0]-1]:
		return notUnique(table)
	}
	found[positions[0]-1] = true
	return nil
}

func notUnique(table Table) error {
	return invalidOption("column %q of %s is not unique: select the rest of its key with Where", table.Key, table)
}

// find returns, for each row that exists, the positions of its key in texts.
func (c *call) find(ctx context.Context, texts []string) ([][]int32, error) {
	q := c.render(findSQL, []any{arrayText(texts)})
	return collect(ctx, c.tx, q, pgx.RowTo[[]int32])
}

// check checks the arguments that the server need not see.
func (c *call) check() error {
	if err := c.table.check(); err != nil {
		return err
	}
	return c.cfg.check()
}

// setColumns notes the columns that the statement names.
func (c *call) setColumns(columns []string) {
	c.columns = slices.Concat([]string{c.table.Key}, columns, whereColumns(c.cfg.conditions), c.cfg.orderColumns())
}

// collect runs the query and returns its rows.
func collect[T any](ctx context.Context, tx Tx, q pgtx.Query, scan pgx.RowToFunc[T]) ([]T, error) {
	found, err := tx.Query(ctx, q.SQL, q.Args...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(found, scan)
}

// wait returns the end of the locking clause.
func (c *config) wait() string {
	switch {
	case c.noWait:
		return "NOWAIT"
	case c.skipLocked:
		return "SKIP LOCKED"
	}
	return ""
}
