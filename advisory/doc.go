// Package advisory provides PostgreSQL's advisory locks: in a transaction, for work that is one
// transaction, and in a separate session, for other work.
//
//	           one transaction?
//	          yes ╱        ╲ no
//	[Do], [Lock] on your tx   must holders never overlap, or must it work through poolers?
//	                            no ╱            ╲ yes
//	                         [Acquire]      package pglock: leases
//
// The locks need no table, because a [Key] is a 64-bit hash of a name, or a number that other
// programs use.
//
// # Guarantees
//
//   - A lock in a transaction is held exactly as long as the transaction. The holder's writes
//     commit together with the lock, so a holder that was paused, cut off or killed has written
//     nothing.
//   - A wait ends when its context is done or its timeout has passed. It then holds no lock, and
//     the caller's transaction and its settings are unchanged.
//   - Do reads what the lock's last holder has committed, at every isolation level.
//   - In one process, at most two calls of Do with the same key use a connection, and at most one
//     call of Acquire, during an attempt.
//   - A connection that may still hold a lock is closed and not returned to its pool.
//
// # Limits
//
// An advisory lock has no fencing token, and it excludes only programs that lock the same key. It
// exists on one server: a lock on a standby excludes only other sessions of that standby, and a
// failover loses all locks. A session lock ends with its connection, and the server may notice
// that end before the holder does; [Session.Context] is done a second later at most. If two holders
// at once would do harm, use a transaction, or a lease with its guard.
//
// A wait in a transaction blocks in the server and holds a snapshot, and CREATE INDEX CONCURRENTLY
// and vacuum wait for it. For waits that may be long use Acquire, which polls, or a lease. Pollers
// are not served in order, they come after transactions that block in the server, and the server
// detects no deadlock among them.
//
// Readers and writers lock in transactions on both sides ([LockShared], [Lock]): the server queues
// them, so that a writer that waits stops new readers. Session locks are exclusive, so an Acquire
// beside overlapping LockShared transactions is granted the lock only at a moment without readers,
// which may never come. If the work of readers and writers is longer than a transaction, use the
// readers–writer lock of package pglock, whose queue is fair.
//
// # A wait in a transaction
//
//	SAVEPOINT ─ lock, with lock_timeout ─ RELEASE      one round trip
//	              │ timeout, deadlock, ctx done (cancels on the server)
//	              ▼
//	      ROLLBACK TO SAVEPOINT: no lock, the earlier settings
//
// The server confirms the savepoint before anything can be canceled, and the statement that
// locks is prepared inside the savepoint.
//
// # Failures
//
//   - The holder's process dies: the server releases the lock when it notices, at once if the
//     connection was closed, and after eleven seconds if the machine is gone.
//   - The server dies: transactions are rolled back, and session locks are lost.
//   - The answer to a commit is lost: [ErrCommitUnknown].
//   - pg_terminate_backend or pg_cancel_backend: the call fails without the lock.
package advisory
