// Package advisory locks with PostgreSQL's advisory locks: in a transaction, for work that is one, and
// in a session of its own, for work that is not.
//
//	           one transaction?
//	          yes ╱        ╲ no
//	[Do], [Lock] on your tx   must it never overlap, or pass poolers?
//	                            no ╱            ╲ yes
//	                         [Acquire]      package leasetable
//
// No table is needed. A [Key] is a 64-bit hash of a name, or a number that other programs use already.
//
// # What it guarantees
//
//   - A lock in a transaction is held exactly as long as the transaction: what it writes and the lock
//     are one thing, so a holder that was paused, cut off or ended has written nothing.
//   - A wait ends when its context does, or its time-out. A wait that ended holds no lock, and leaves the
//     caller's transaction and its settings as they were.
//   - Do reads what the lock's last holder has committed, at every isolation level.
//   - In one process, of all who want the same key with Do two use a connection, and with Acquire none.
//   - A connection on which a lock may be left is closed, not given back to a pool.
//
// # What it does not
//
// An advisory lock has no fencing token and excludes only those who ask for it. It is the primary's: on a
// standby it excludes others on the same standby alone, and a failover forgets it. A session lock ends with its
// connection, which the server may notice before the holder does; [Session.Done] tells within a second.
// Where two holders at once would do harm, use a transaction, or a lease with its guard.
//
// A blocked wait in the server holds a snapshot, for which CREATE INDEX CONCURRENTLY and vacuum wait:
// [WithPolling] and Acquire ask again and again instead. Pollers are not served in order, and the server sees no
// deadlock among them.
//
// # A wait in a transaction
//
//	SAVEPOINT ─ lock, with lock_timeout ─ RELEASE      one round trip
//	              │ time-out, deadlock, ctx done (the server is asked to cancel)
//	              ▼
//	      ROLLBACK TO SAVEPOINT: no lock, the settings of before
//
// # A session's lock
//
//	Acquire ── a connection of the pool: is there a pooler in transaction mode? ── ErrPooled
//	              │ try: busy: the connection goes back, a pause
//	              ▼
//	            held, on a connection that the pool has given away
//	              │ its end is read at once; four times a second the server is asked for a sign of life
//	              ├── Release: unlocked, the answer checked, closed
//	              └── silent or gone: lost, closed
//
// # When things fail
//
//   - The holder's process dies: the server frees the lock when it notices, at once if the connection was
//     closed, after eleven seconds where the machine is gone.
//   - The server dies: transactions are undone, sessions lost.
//   - The commit's answer is lost: [ErrCommitUnknown].
//   - Somebody runs pg_terminate_backend or pg_cancel_backend: an error, and no lock.
package advisory
