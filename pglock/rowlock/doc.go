// Package rowlock locks rows of the application's own tables, in the application's own
// transactions: SELECT … FOR UPDATE over a set of keys, in one order for everybody, with a bound
// on the wait. On it stand [Reserve], which takes quantities from a stock or says what is short,
// and [Claim], which shares a queue out.
//
//	stock := rowlock.Stock{Table: rowlock.Table{Name: pgx.Identifier{"stock"}, Key: "sku"}, Quantity: "qty"}
//	err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
//		left, err := rowlock.Reserve(ctx, tx, stock, []rowlock.Line[string, int]{{"A-1", 2}, {"B-7", 1}})
//		if err != nil {
//			return err // errors.As *rowlock.ShortError: of what there is too little
//		}
//		... write the order in tx
//	})
//
// A *sql.Tx on pgx's driver works as well, through package sqltx. No table of this module's is needed.
//
// # What it guarantees
//
//   - What a call returns is locked until the transaction ends, and is what the last holder has committed, not
//     what an older snapshot shows.
//   - All or nothing: a call that fails has locked no row and changed none. The transaction is as it was before it, with its
//     lock_timeout, and can be used further.
//   - Calls over the same table and key do not deadlock with each other, if each transaction makes one.
//   - Reserve never takes more than there is, also beside writers that know nothing of this package: it compares the locked row.
//   - Names are quoted, values are parameters: nothing that is passed in becomes SQL.
//   - A missing row, a key that comes twice, a column that is not unique, a quantity that the column would round are
//     errors, and never fewer rows than were asked for. (AllowMissing and SkipLocked ask for that.)
//
// # What it does not
//
// A row lock excludes those who lock or change the row, not those who only read it: a plain SELECT before the lock proves
// nothing. There is nothing to lock where there is no row: keep a second insert out with a unique constraint, or
// lock a name with package advisory. Locks end with the transaction; work that outlasts one needs a lease.
//
// # Which lock
//
// Each excludes those marked in its line. Locking rewrites the row's header, and so writes WAL, even if nothing is
// changed.
//
//	                    KeyShare  Share  NoKeyUpdate  Update
//	ForKeyShare             .       .         .         x      it must stay, with its key
//	ForShare                .       .         x         x      it must stay as it is
//	ForNoKeyUpdate          .       x         x         x      I will change it (what UPDATE takes; Reserve too)
//	ForUpdate               x       x         x         x      I will delete it or change its key (Claim too)
//
// To insert a row with a foreign key takes KeyShare on the row that it points at: ForUpdate on a customer holds up all of the
// customer's new orders, ForNoKeyUpdate none. Two transactions that hold Share and then both write deadlock: take what
// the writing needs from the start.
//
// # The order of locks
//
// Two transactions deadlock when each waits for a row that the other holds. A call locks its rows in ascending order of
// the table's Key, whatever the order of the arguments, so among calls there is no cycle. It is up to the caller that
//
//   - a transaction locks all rows of a table in one call: two calls, or a call and an UPDATE of other rows, have two orders;
//   - several tables are locked in the same order everywhere;
//   - all callers name the same Key for a table, and its values do not change;
//   - nothing that others wait for was locked before (an advisory lock, a row that a trigger updates).
//
// Where it happens all the same, the server ends one of the waits after deadlock_timeout: [ErrDeadlock]. Roll back, and run the
// whole transaction again.
//
// # A call
//
//	SAVEPOINT ── lock_timeout, if bounded ── lock, check ── RELEASE     three round trips, four if bounded
//	                │ busy, late, missing, short, deadlock, ctx done (the server is asked to cancel)
//	                ▼
//	        ROLLBACK TO SAVEPOINT: no lock, no change, the settings of before
//
// A row that is deleted and inserted again while it is waited for, or moves to another partition, is in the table and not in the
// statement's snapshot: then the call starts over, up to five times. At REPEATABLE READ and SERIALIZABLE a row that has changed since the
// transaction's snapshot is the server's error 40001, in a transaction that can only be run again.
//
// # When things fail
//
//   - The wait ends: [ErrNotAcquired] with [ErrTimeout], [ErrDeadlock], or the context's error and cause.
//   - The process dies, its connection is cut, or somebody runs pg_terminate_backend: the server rolls back when it notices, and
//     the rows are free, as they were. What Claim handed out is handed out again.
//   - The commit's answer is lost: nobody knows. Write an id of the request's own in the transaction, and look for it.
//   - A failover: the same. Rows locked and not committed are free on the new primary.
package rowlock
