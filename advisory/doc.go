// Package advisory provides PostgreSQL's advisory locks: in a transaction, for work that is one
// transaction, and in a session of their own, for other work.
//
//	           one transaction?
//	          yes ╱        ╲ no
//	[Do], [Lock] on your tx   must holders never overlap, or must it work through poolers?
//	                            no ╱            ╲ yes
//	                         [Acquire]      package leasetable
//
// No table is needed. A [Key] is a 64-bit hash of a name, or a number that other programs use.
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
//     call of Acquire that wants the key exclusively, during an attempt or while it is next.
//   - A connection that may still hold a lock is closed and not returned to its pool.
//
// # Limits
//
// An advisory lock has no fencing token, and it excludes only programs that lock the same key. It
// exists on one server: a lock on a standby excludes only other sessions of that standby, and a
// failover loses all locks. A session lock ends with its connection, and the server may notice
// that end before the holder does; [Session.Done] is closed a second later at most. If two holders
// at once would do harm, use a transaction, or a lease with its guard.
//
// A wait that blocks in the server holds a snapshot, and CREATE INDEX CONCURRENTLY and vacuum
// wait for it. [WithPolling] and Acquire poll instead. Pollers are not served in order, they come
// after transactions that block in the server, and the server detects no deadlock among them.
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
// # A session lock
//
//	Acquire ── a connection of the pool: is it behind a pooler in transaction mode? ── ErrPooled
//	              │ pass the turnstile, try the lock
//	              │   closed, busy: return the connection, pause
//	              │   next: keep the connection, poll until the lock is free
//	              ▼
//	            held, on a connection that is removed from the pool
//	              │ a closed connection is noticed at once; the server is probed four times a second
//	              ├── Release: unlocked, confirmed by the server, closed
//	              └── silent or gone: lost, closed
//
// # Readers and writers
//
// Readers are sessions that acquire the lock with [WithShared]; writers are the others. Readers
// that overlap would keep out a polling writer forever, and writers that follow each other would
// keep out a reader. So each lock has a second key, its turnstile ([Key.Turnstile]). This is the
// no-starve solution of the readers–writers problem in Downey, The Little Book of Semaphores,
// adapted to polling: Downey's turnstile is a fair queue, and this one is held only by a waiter
// that the other kind keeps out.
//
//	pass    lock the turnstile shared, try the lock, unlock the turnstile: one statement
//	stay    if the other kind holds the lock, try to lock the turnstile exclusively: next
//	enter   try the lock every 50 ms; once it is held, unlock the turnstile: one statement
//
//	state              waiter that may stay   grant that follows
//	held by readers    one writer             that writer, after the readers that hold the lock
//	held by a writer   one reader             that reader, after the writer, and then all readers
//
// While one waiter is next, no other session passes, and a try reports that the lock is not free.
// So a waiter waits for the holders that it met, for at most 375 ms until its next attempt, and
// for waiters of its own kind that attempted earlier. Writers without readers leave the turnstile
// open, at no cost.
//
// The waiter that is next holds a connection: one for each key, however many wait. PostgreSQL 14
// and later end its session after two seconds of silence. If the waiter was paused, others pass
// then, and it tries again when it resumes. On PostgreSQL 13 they wait until it resumes or its
// connection ends.
//
// A reader must not acquire the same key again, as with sync.RWMutex: if a writer waits in
// between, the reader waits for the writer and the writer for the reader. Transactions and plain
// SQL do not use the turnstile, so [LockShared] transactions that overlap can keep out a writer's
// Acquire. If both kinds meet, lock in transactions on both sides: the server queues them.
//
// # Failures
//
//   - The holder's process dies: the server releases the lock when it notices, at once if the
//     connection was closed, and after eleven seconds if the machine is gone.
//   - The server dies: transactions are rolled back, and session locks are lost.
//   - The answer to a commit is lost: [ErrCommitUnknown].
//   - pg_terminate_backend or pg_cancel_backend: the call fails without the lock. An Acquire that
//     is next and loses its connection continues on another one.
package advisory
