// Package runner runs a service's own migrations under a lock, so that many replicas can start at
// once: one migrates, the others wait and then continue.
//
//	golang-migrate's files, a service that migrates when it starts    [Run]
//	golang-migrate itself, by its own calls                           [Wrap]
//	goose                                                             package pglock/gooselock
//	any other library                                                 [Guard]
//	any other program, such as atlas, tern, dbmate, Flyway            pglock run migrations -- PROGRAM
//
// Run and Wrap acquire a session's advisory lock or, with [WithLease], a lease. Behind a pooler in
// transaction mode only the lease works. The lock is named after the schema and the version table.
// Services with separate version tables therefore don't wait for each other, and Run and Wrap on
// the same table exclude each other.
//
// Waiters hold no snapshot. CREATE INDEX CONCURRENTLY waits for all snapshots that are older than
// itself. With a lock that blocks in the server, such as golang-migrate's own, it waits for the
// waiters of that lock.
//
// # Rolling out
//
// Replicas of an earlier release that migrate with golang-migrate's own lock don't acquire this
// lock. Until they are gone, the new replicas acquire both:
//
//	runner.Run(ctx, source, pool, runner.WithKey(runner.GolangMigrateKey("shop", "public", "schema_migrations")))
//
// The next release can drop [WithKey], because Run acquires its own lock in both.
//
// During a rollout, replicas of the earlier release can restart after a later one has migrated. Run
// then returns [ErrUnknownVersion]. A release that works with the tables of a later one passes
// [AllowNewer], and starts.
//
// # The version table
//
// Run commits a migration and its record in one transaction, and changes the record only if it is
// still what Run has read:
//
//	                          a migration in a transaction         one that can't be in a transaction
//	its SQL fails             rolled back, version unchanged       dirty, *MigrationError
//	its process is killed     rolled back, the next replica runs   dirty, ErrDirty for the next
//	the lock is lost          finished and recorded, then stop     finished and recorded, then stop
//	two hold the lock         one waits for the other, and         one finds the other's mark:
//	                          finds it done                        ErrDirty
//
// A migration that can't be in a transaction (CREATE INDEX CONCURRENTLY, VACUUM, a procedure that
// commits) needs a separate file. A file that rolls back the transaction fails.
//
// Each file has a new connection, so what it sets or creates for its session, such as a
// search_path, a role or a temporary table, does not reach the next file. The settings that the
// pool's hooks make apply to each of them.
//
// Wrap replaces the lock of golang-migrate's driver and nothing else: the driver marks every
// migration dirty first, skips files that were merged late, and runs all files on one connection.
//
// # The record of files
//
// A version says nothing about a file that is merged late, with a lower version. So Run also
// records the version, the name and the checksum of each file that it applies, in the same
// transaction. The record is a table beside the version table, whose name ends in _files. Run
// creates it when it first runs, and counts all files up to the version as applied; that takes the
// lock and the right to create a table once, and a role without that right leaves it to others.
// Later each role that calls Run needs SELECT on both tables.
//
//	a file below the version was not applied     ErrOutOfOrder, or run first with AllowOutOfOrder
//	a file has changed since it was applied      ErrChanged, unless AllowChanged names its version
//	golang-migrate has raised the version        the files above the last recorded one count as applied
//	golang-migrate has lowered the version       the files above the version run again
//	the source has no file for a recorded row    accepted: an earlier release has fewer files
package runner
