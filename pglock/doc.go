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
// A lock is a lease: a row of a table with the holder of the name and the time of its expiry. It is
// renewed while the holder lives, and expires after the holder dies. Each grant has a fencing
// token, and the lease guards writes with it, in the transaction that writes:
//
//	tx, err := pool.Begin(ctx)
//	...
//	if err := l.Guard(ctx, tx); err != nil { // ErrStale: another holder has the lock
//		return err
//	}
//	... write, commit
//
// [Client.TryDo] runs the function only if the lock is free now, and [WithWait] limits how long Do
// and Acquire wait. A [Lock] describes any other kind of lock, with the same four methods Acquire,
// TryAcquire, Do and TryDo: [Client.Semaphore], [Client.Reader] and [Client.Writer], or several
// locks together, [Client.All]. For short work that is one transaction, [Client.DoTx] takes an
// advisory lock instead of a lease.
//
// # Guarantees
//
//   - By the server's clock, a name has at most one live grant, and its [fencing.Token] is larger
//     than that of every earlier one.
//   - The holder stops first. The lease's Context, and every context made by [Lease.WithContext],
//     is done before the server could grant the lock to another holder. This also holds when the
//     server hangs, the network is cut, or the process was suspended and then calls Err or Done,
//     but not for [Client.Revoke].
//   - After a failover, these guarantees depend on the kind of replication, as
//     docs/explanation/tokens-through-failover.md explains.
//   - Renewing and releasing affect only their own grant.
//   - A failed try writes nothing. A waiter holds no connection and no transaction, so a thousand
//     of them cost a client the connections of one.
//   - The lock is granted first come, first served, across processes, while no more than 16 of them
//     wait for it. Only a call with [WithBarging] overtakes these.
//   - A row that another transaction has locked is busy and delays no other lock. A role without
//     rights on the tables can't delay a grant.
//   - A call whose context ends leaves no lock and no connection behind.
//
// # Limits
//
// The order of the queue is not an invariant: a crash of the server empties the queue, and a waiter
// that does not respond within 1.5 s of a release is skipped.
//
// A process that sleeps between reading Err and writing writes late, and only [Lease.Guard] makes
// the database refuse that write. A server whose clock jumps forward ends leases early. A suspended
// machine stops the monotonic clock, by which deadlines are measured.
//
// Each name has a row, which is kept until the name has been idle for the retention
// ([WithRetention]), and [fencing.Advance] keeps a row for each resource forever. Nothing else
// bounds their number, so limit the names that untrusted callers can create.
//
// # Holding rules
//
// Times count from the grant, from its end, or from a renewal:
//
//	grant                  WithMinHold                     WithMaxHold
//	  ├──────────────────────────┼──────────────────────────────┼─────────────────┐
//	  │ a released lock stays    │ a released lock is free      │ no renewals,    │ lost
//	  │ locked, without a holder │ at once                      │ holder notified │
//
//	last renewal           deadline    TTL over          WithLockDelay over
//	  ├──────────────────────────┼──────────┼──────────────────────┐
//	  │ the holder trusts it     │ margin   │ others still wait    │ free
//
// # Nested calls
//
// The contexts of a lease carry it ([Lease.Context], [Lease.WithContext], and those derived from
// them), and [FromContext] returns it. An acquire of the same lock under such a context would wait
// for itself, so it fails at once with ErrHeldByCaller, unless a Do joins the lease with
// [WithJoin]. Calls that wait for each other, because the context of each carries what the next one
// waits for, are found, usually within a tenth of a second, and the youngest fails with
// [ErrDeadlock].
//
// # Errors
//
// A call that the server does not answer in time returns an error that wraps [ErrUnavailable]; one
// whose ctx ends first, the error and cause of ctx; one on a closed client, [ErrClosed]; and one
// with an invalid name, argument or option, [ErrInvalidOption], before the database is contacted.
// The methods document only other errors, and the state that an error leaves behind. ctx bounds the
// call, and never the lease.
//
// # More
//
// The directory docs of the repository has tutorials, guides and a reference. There,
// docs/reference/protocol.md explains the life of a lease, permits, several names, batches,
// connections and failures, and docs/explanation/the-queue.md the wait queue. Package migrations
// creates the tables. Programs on database/sql call [OpenDB], and package sqltx has recipes for
// GORM, sqlx, sqlc and ent.
package pglock
