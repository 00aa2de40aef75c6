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
//	               SessionLocker                      Locker
//	the lock       advisory, of the connection        a lease in a table
//	               that migrates
//	when lost      the connection is lost too, so     StopOnLoss ends the context: goose cancels the current
//	               no migration can run               migration and begins no other; the client logs it
//	holder dies    free at once                       free after the TTL
//	pooler         not in transaction mode: refused   any
//	needs          nothing                            pglock's tables, a client
//
// A waiter of either kind holds no snapshot, so that it does not block CREATE INDEX CONCURRENTLY.
//
// Goose runs all files of a run on one connection, and then returns it to its pool, so what a file
// sets by SET reaches the next files and the service: use SET LOCAL in a transaction.
//
// The package implements goose's interfaces without importing goose.
package gooselock
