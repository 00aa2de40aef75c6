// Package rowlock locks rows of the application's own tables in the application's own
// transactions: SELECT … FOR UPDATE over a set of keys, in the same order everywhere, with a bound
// on the wait. [Reserve] subtracts quantities from a stock or reports what is short, and [Claim]
// hands out the rows of a queue.
//
//	table := rowlock.Table{Name: pgx.Identifier{"stock"}, Key: "sku"}
//	stock := rowlock.Stock{Table: table, Quantity: "qty"}
//	lines := rowlock.Lines(rowlock.Take("A-1", 2), rowlock.Take("B-7", 1))
//	err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
//		left, err := rowlock.Reserve(ctx, tx, stock, lines)
//		if err != nil {
//			return err // errors.As *rowlock.ShortError: the lines that could not be served
//		}
//		rest, _ := left.Get("A-1")
//		... write the order in tx
//	})
//
// A *sql.Tx on pgx's driver works too, through package sqltx. The package needs no table of its
// own.
//
// # Guarantees
//
//   - The rows that a call returns are locked until the transaction ends. Their values are what the
//     last holder has committed, not what an older snapshot shows.
//   - All or nothing: a call that fails has locked no row and changed none. The transaction and its
//     lock_timeout are unchanged, and it remains usable.
//   - Calls over the same table and key do not deadlock with each other, if each transaction makes
//     one.
//   - Reserve never takes more than is available, also beside writers that do not use this package:
//     it compares the locked row.
//   - Names are quoted and values are parameters: no argument becomes SQL.
//   - A missing row, a key that is passed twice, a column that is not unique and a quantity that
//     the column would round are errors. No call silently returns fewer rows than it was asked
//     for, except with AllowMissing and SkipLocked.
//
// # Limits
//
// A row lock excludes transactions that lock or change the row, not those that only read it: a
// plain SELECT before the lock proves nothing. A row that does not exist can't be locked: use a
// unique constraint to prevent a second insert, or lock a name with package advisory. The locks end
// with the transaction; work that outlasts a transaction needs a lease.
//
// # Lock strengths
//
// Each strength excludes those marked in its line. To lock a row rewrites its header, and so writes
// WAL, even if no column changes.
//
//	                    KeyShare  Share  NoKeyUpdate  Update
//	ForKeyShare             .       .         .         x      the row and its key must stay
//	ForShare                .       .         x         x      the row must not change
//	ForNoKeyUpdate          .       x         x         x      to change the row; Reserve, UPDATE
//	ForUpdate               x       x         x         x      to delete it or change its key; Claim
//
// An insert with a foreign key takes KeyShare on the referenced row. So ForUpdate on a customer
// blocks all new orders of the customer, and ForNoKeyUpdate blocks none. Two transactions that hold
// Share and then both write deadlock: take the strength that the write needs from the start.
//
// # The order of locks
//
// Two transactions deadlock when each waits for a row that the other holds. A call locks its rows
// in ascending order of the table's Key, whatever the order of the arguments, so that calls form no
// cycle. The caller must make sure that
//
//   - a transaction locks all its rows of a table in one call: two calls, or a call and an UPDATE
//     of other rows, have two orders;
//   - several tables are locked in the same order everywhere;
//   - all callers name the same Key for a table, and its values do not change;
//   - the transaction holds nothing yet that others wait for (an advisory lock, a row that a
//     trigger updates).
//
// If a deadlock happens, the server ends one of the waits after deadlock_timeout: [ErrDeadlock].
// Roll back, and run the whole transaction again.
//
// # A call
//
//	SAVEPOINT ── lock_timeout, if bounded ── lock, check ── RELEASE
//	                │ busy, timeout, missing, short, deadlock, ctx done (cancels on the server)
//	                ▼
//	        ROLLBACK TO SAVEPOINT: no lock, no change, the earlier settings
//
// A call takes three round trips, and four if its wait is bounded.
//
// A row that is deleted and inserted again during the wait, or that moves to another partition, is
// in the table but not in the statement's snapshot: then the call starts over, up to five times. At
// REPEATABLE READ and SERIALIZABLE a row that has changed since the transaction's snapshot is the
// server's error 40001, and the whole transaction must be run again.
//
// # Failures
//
//   - The wait ends: [ErrNotAcquired] with [ErrTimeout], [ErrDeadlock], or the context's error and
//     cause.
//   - The process dies, its connection breaks, or pg_terminate_backend ends it: the server rolls
//     back when it notices, and the rows are unlocked and unchanged. Rows of Claim are handed out
//     again.
//   - The answer to the commit is lost, also in a failover: the transaction is either committed or
//     rolled back. Write an id of the request in the transaction, and look for it.
//   - A failover loses the locks of transactions that were not committed.
package rowlock
