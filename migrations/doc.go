// Package migrations creates pglock's tables.
//
// They are plain SQL files, in [FS], run by golang-migrate in any schema, also
// in one whose name needs quoting. A service calls [Up] when it starts, an
// operator runs `pglock migrate up`; both may happen everywhere at once.
//
//	read the version ── as wanted ──▶ return nil
//	       │
//	rights missing? ── yes ──▶ ErrPrivilege, nothing changed
//	       │
//	take the lock (polling, a transaction's advisory lock)
//	       │
//	golang-migrate: mark dirty, run the file in one transaction, mark clean
//
// The lock is held by a transaction of its own, so it ends with its connection,
// and it is polled, so a process that gives up waiting leaves nothing behind.
//
// A process that dies between "mark dirty" and "mark clean" leaves the version
// dirty. The file has then been applied as a whole or not at all; [DirtyError]
// tells how to see which, and how to go on.
//
// Programs that use locks do not need this package: pglock does not import it,
// so golang-migrate reaches only those who call it.
package migrations
