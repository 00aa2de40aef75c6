// Package pglock is a distributed lock for programs that are on PostgreSQL already.
//
//	client, err := pglock.Open(ctx, pool)
//	...
//	err = client.Do(ctx, "nightly-report", func(ctx context.Context, l *pglock.Lease) error {
//		return report(ctx)
//	})
//
// A lock is a lease in a table: it has a holder, ends by itself when the holder
// dies, and is renewed while it lives. Each grant has a fencing token, and the
// writes that matter are guarded with it, in their own transaction:
//
//	tx, err := pool.Begin(ctx)
//	...
//	if err := l.Guard(ctx, tx); err != nil { // stale: somebody else holds the lock
//		return err
//	}
//	... write, commit
//
// What is guaranteed, what is not, and what happens when things fail is told in
// package leasetable; what a guard does in package fencing.
//
//	pglock ──▶ leasetable ──▶ fencing
//	migrations: creates the tables, for those who call it
package pglock
