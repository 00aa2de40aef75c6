// Package migrations creates pglock's tables, and guards the migrations of the services that use it.
//
// # pglock's own tables
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
// # A service's own migrations
//
//	files of golang-migrate, a service that migrates when it starts   [Run]
//	golang-migrate itself, by its own calls                           [Wrap]
//	goose                                                             package pglock/gooselock
//	any other library                                                 [Guard]
//	any other program, as atlas, tern, dbmate, Flyway                 pglock run migrations -- PROGRAM
//
// N replicas start, one migrates, the others wait and go on. Run and Wrap take an advisory
// lock of a session, or, by [WithLease], a lease: behind a pooler in transaction mode only that works.
//
//   - Waiters hold no snapshot. CREATE INDEX CONCURRENTLY waits for all snapshots that are older than itself;
//     with a lock that blocks in the server, as golang-migrate's own, it waits for those who wait for it.
//   - A wait ends when its context or WithTimeout does, and leaves nothing on the server. The error tells who
//     holds the lock, and for how long.
//   - A lock that is lost stops the run before the next migration.
//
// # What a version table says
//
// Run commits a migration and its record in one transaction, and changes the record only if it is still
// what was read:
//
//	                          a migration that is a transaction    one that can't be, alone in its file
//	its SQL fails             undone, the version is as before     dirty, *MigrationError
//	its process is killed     undone, the next replica does it     dirty, *HalfwayError for the next
//	the lock is lost          finished and recorded, then stop     finished and recorded, then stop
//	two believe in the lock   one waits for the other and then     one finds the mark of the other:
//	                          finds it done                        *HalfwayError
//
// Wrap leaves the record to golang-migrate's driver, which marks every migration dirty first. When the lock is lost
// meanwhile it takes it again to remove its own mark; if it can't, the mark stays, and the error says so.
//
// A version table belongs to one source. Run notes in the table's comment which file led to the version, and refuses
// another source's ([ErrOtherSource]), and versions that the source does not have ([ErrUnknownVersion]).
//
// Programs that use locks do not need this package: pglock does not import it,
// so golang-migrate reaches only those who call it.
package migrations
