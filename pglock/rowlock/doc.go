// Package rowlock locks rows of the application's own tables in the application's own transactions:
// [Lock] locks the rows with given keys, in the same order everywhere, [Reserve] subtracts
// quantities from a stock or reports what is short, and [Claim] hands out the rows of a queue. A
// *sql.Tx on pgx's driver works too, through package sqltx. The package needs no other table.
//
// # Guarantees
//
//   - Locked rows stay locked until the transaction ends. Claim, and later reads of the rows in the
//     transaction, return the values that the last holder has committed.
//   - All or nothing: a call that fails has locked no row and changed none, and the transaction
//     remains usable.
//   - Calls over the same table and key do not deadlock with each other, if each transaction makes
//     one. Claim waits for no row, so the order of its SELECT does not matter.
//   - Reserve never takes more than is available, also beside writers that do not use this package,
//     because it compares the locked row.
//   - The condition of a [Table] and the SELECT of Claim are the only texts that become SQL.
//   - A missing row, a key that is passed twice, a column that is not unique and a quantity that
//     the column would round are errors. No call silently locks fewer rows than it was asked for,
//     except with AllowMissing and SkipLocked.
//
// # Limits
//
// A row lock does not exclude those that only read, so a plain SELECT before the lock proves
// nothing. A row that does not exist can't be locked: use a unique constraint to prevent a second
// insert, or lock a name with package advisory. Work that outlasts a transaction needs a lease.
//
// # Lock strengths
//
// Each strength excludes those marked in its line.
//
//	                       KeyShare  Share  NoKeyUpdate  Update
//	ForKeyShare                .       .         .         x      the row and its key must stay
//	ForShare                   .       .         x         x      the row must not change
//	ForNoKeyUpdate             .       x         x         x      to change it; Reserve, UPDATE
//	Lock without an option     x       x         x         x      to delete it; Claim
//
// An insert with a foreign key takes KeyShare on the referenced row, so the last one blocks new
// orders of a locked customer. Two transactions that hold Share and then both write deadlock.
//
// # The order of locks
//
// A call locks its rows in ascending order of the table's Key, so that calls do not wait for each
// other in a cycle. The caller must make sure that
//
//   - a transaction locks all its rows of a table in one call, and updates no other rows of it;
//   - several tables are locked in the same order everywhere, and each by the same Key;
//   - the transaction holds nothing yet that others wait for, such as an advisory lock.
//
// Otherwise the server ends one of the waits, after deadlock_timeout: see [NotAcquiredError].
//
// # Failures
//
//	SAVEPOINT ── lock_timeout, if bounded ── lock, check ── RELEASE
//	                │ busy, deadline, missing, short, deadlock, ctx done (cancels on the server)
//	                ▼
//	        ROLLBACK TO SAVEPOINT: no lock, no change, the earlier settings
//
// The diagram lacks three failures:
//
//   - A row is deleted and inserted again during the wait, or moves to another partition: since the
//     statement's snapshot lacks it, the call starts over, up to five times. At REPEATABLE READ and
//     SERIALIZABLE, a row that has changed since the transaction's snapshot is the server's error
//     40001, and the whole transaction must be run again.
//   - The process dies, or its connection breaks: when the server notices, it rolls back, and the
//     rows are unlocked and unchanged. Rows of Claim are handed out again.
//   - The answer to the commit is lost, also in a failover: the transaction is either committed or
//     rolled back. Write an id of the request in the transaction, and look for it.
package rowlock
