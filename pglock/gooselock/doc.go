// Package gooselock has locks for github.com/pressly/goose/v3.
//
//	session, err := gooselock.NewSessionLocker("migrations of shop")
//	...
//	provider, err := goose.NewProvider(goose.DialectPostgres, db, files, goose.WithSessionLocker(session))
//
// or, with a lease, for databases behind a pooler in transaction mode:
//
//	locker, err := gooselock.NewLocker(client, "migrations of shop")
//	...
//	provider, err := goose.NewProvider(goose.DialectPostgres, db, files, goose.WithLocker(locker))
//	...
//	ctx, stop := locker.StopOnLoss(ctx)
//	defer stop()
//	_, err = provider.Up(ctx)
//
//	                  SessionLocker                     Locker
//	the lock          advisory, of the very connection  a lease in a table
//	                  that migrates
//	if it is lost     so is the connection: nothing      StopOnLoss ends the context: the migration under
//	                  more can be migrated               way is cancelled, no other begun
//	holder dies       free at once                       free after the TTL
//	pooler            not in transaction mode: refused   any
//	needs             nothing                            pglock's tables, a client
//
// Both wait without a snapshot, so that CREATE INDEX CONCURRENTLY is not blocked by those who wait, and no longer
// than the context, or WithTimeout. The interfaces of goose are met as they are: this package does not import it.
package gooselock
