// Package pglock is a distributed lock for programs that use PostgreSQL.
//
//	client, err := pglock.Open(ctx, pool)
//	...
//	err = client.Do(ctx, "account:17", func(ctx context.Context, l *pglock.Lease) error {
//		return settle(ctx, 17)
//	})
//
// Do excludes other callers while the function runs. For a job that must run once per tick among
// all processes, use package schedule.
//
// A lock is a lease in a table. It has a holder, is renewed while the holder lives, and expires
// when the holder dies. Each grant has a fencing token. Guard writes with the lease, in the
// transaction that writes:
//
//	tx, err := pool.Begin(ctx)
//	...
//	if err := l.Guard(ctx, tx); err != nil { // ErrStale: another holder has the lock
//		return err
//	}
//	... write, commit
//
// [Client.TryDo] runs the function only if the lock is free now, and [WithWait] limits how long Do and
// Acquire wait. The function's context carries the lease: a nested call for the same name fails at
// once, or joins the lease with [WithJoin].
//
// For short work that is one transaction, [Client.DoTx] takes an advisory lock instead of a lease.
//
// # Guarantees
//
//   - By the server's clock, a name has at most one live lease.
//   - A lease's Context is done before the server could grant the lock to another holder.
//   - Tokens grow with every grant.
//   - A guarded transaction commits only while its lease is the current one.
//
// Packages leasetable and fencing state all guarantees, their limits, and what happens on failures.
//
// # Packages
//
//	schedule, once, leader
//	   │
//	pglock ──▶ leasetable ──▶ fencing
//	   └─────▶ advisory ◀── rowlock ──▶ sqltx
//
// Programs on database/sql call [OpenDB]; package sqltx has recipes for GORM, sqlx, sqlc and ent.
// Package migrations creates the tables. Package pglock does not import it.
package pglock
