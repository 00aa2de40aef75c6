// Package fencing keeps a holder whose lock has passed to somebody else from
// writing.
//
// A lock alone does not: its holder may be paused (by the garbage collector, the
// hypervisor, a swapped page) after it looked at the lock and before it wrote,
// for longer than the lock lasts. So every grant carries a [Token], larger than
// that of every grant before it, and the write itself is checked against it:
//
//	holder A: token 33 ──── paused ───────────────▶ writes with 33: ErrStale
//	                      A's lease ends
//	holder B:                     token 34 ── writes with 34: passes
//
// A [Fence] is the name of a lock with the token of one grant. It comes from a lease
// (its method Fence) or from text ([ParseFence]), so that another process can write for
// the holder.
//
// # Which one to use
//
//	what is written                     by                 use
//	rows of this database               this transaction   Check, or Guard of the lease
//	the same, in one round trip         some statements    Batch
//	rows that nobody shall write        anybody, an ORM,   Protect the table once,
//	without the lock, by mistake        a psql session     Bind in each transaction
//	what has no token column            a transaction      Advance
//	files, queues, other services       their servers      Handler, Transport, Checker
//
// # What it guarantees
//
//   - A transaction in which [Check], [Bind] or [Batch] passed commits only while its
//     grant is the newest of that name: a takeover waits for its end. The holder's
//     renewals pass meanwhile.
//   - Only the current grant passes: not an older one, not one that has ended, and not a
//     token above the current one, which somebody made up.
//   - A protected table takes no row that is older, by its grant, than the one that it
//     replaces. In strict mode it takes nothing without a grant. That holds for INSERT,
//     UPDATE, DELETE, MERGE, COPY, ON CONFLICT and TRUNCATE, through views, rules, foreign
//     keys and functions, for any client, the table's owner and superusers included.
//   - A holder that is paused in its transaction keeps the others out for as long as its
//     lease had left when it checked, not for as long as it sleeps.
//   - What a [Checker] accepts, and what [Advance] does, is monotone for each resource.
//
// # How a protected table works
//
//	Bind ──▶ locks the grant's row until the end ──▶ notes name and token in the transaction
//	                                                            │
//	a statement: what is noted is verified, once ◀──────────────┘
//	each row:    nothing noted ─────▶ ErrUnfenced (strict) or as it is (permissive)
//	             other lock's row ──▶ ErrOtherLock (NamedBy)
//	             a newer token there ▶ ErrStale
//	             else ──────────────▶ stamped with the token, and written
//
// What is noted are settings of the transaction. Somebody who sets them by hand gains
// nothing: they are compared with the lock table.
//
// # What it does not
//
// What the transaction does outside the database is not undone with it. Send the token
// along, and let the other side compare: that is what the last row above is for.
//
// A Checker sees no locks. It refuses who comes after a newer one, and not who comes late,
// but first.
//
// A protected table is not protected from those who may switch triggers off: the table's
// owner by ALTER TABLE … DISABLE TRIGGER, superusers by session_replication_role. For the
// same reason what arrives by logical replication is taken as it is: its publisher has
// checked it. (The triggers fire for the origin of a change, not ALWAYS: else a subscriber
// would refuse all.) Nor is it protected from a BEFORE trigger whose name sorts behind
// zz_pglock_fence and that changes the row again.
//
// Partitions that are attached later are fenced at once, except for TRUNCATE and for
// settings that were made by hand; [Protect] again completes them. One that is detached is
// on its own: Protect it, or Unprotect it. A table that gets children by INHERITS later is
// refused by the next Protect; until then the children's rows are not fenced.
//
// In permissive mode a writer without a grant may bring a token of its own into a
// partitioned table.
//
// # When things fail
//
//   - The grant was taken over, or has ended: [ErrStale]. Roll back. Do not retry with the
//     same grant.
//   - The holder sleeps inside: the server ends the transaction, the next call says
//     [ErrPaused] (through [Explain]), nothing was written. A program that stops while it
//     sends a batch larger than the socket's buffer is not idle by the server's count: only
//     TCP keepalive, or transaction_timeout of PostgreSQL 17, bounds that.
//   - The lease ends while the transaction works: it may still commit, as long as nobody
//     else was granted the lock, and nobody is while it is open. Who tries finds the lock
//     busy and waits for nobody's row lock.
//   - The connection breaks during a commit: it may have been carried out. The row's token
//     tells.
//   - The snapshot is older than the grant's last change (REPEATABLE READ, SERIALIZABLE):
//     [ErrSnapshot]. Begin anew, and check first.
//   - The token column, or one that names the lock, is renamed: writes fail with the
//     server's undefined_column (42703) until Unprotect and Protect. It can't be dropped.
//   - A dump is restored: pg_dump keeps columns, functions and triggers, and restores the
//     rows before the triggers. Into a table that is protected already, restoring data
//     alone needs pg_restore --disable-triggers.
//
// # From other languages
//
// All of it is in the database. The schema of the locks is pglock here; $name and $token
// are those of a grant. The whole session is in testdata/plain.sql.
//
//	-- a token column that the writer compares itself; no row: a newer one has written
//	UPDATE reports SET body = $1, fence_token = $token WHERE id = $2 AND fence_token <= $token;
//
//	-- a guarded transaction, as Check
//	BEGIN; SELECT pglock.guard($name, $token); UPDATE …; COMMIT;
//
//	-- a protected table: once, in a migration; then as Bind in each transaction
//	SELECT pglock.protect('reports', permissive => false, named_by => 'report:{id}');
//	BEGIN; SELECT pglock.bind($name, $token); UPDATE …; COMMIT;
//	SELECT * FROM pglock.protected_tables;
//	SELECT pglock.unprotect('reports');
//
//	-- a mark for what has no column
//	SELECT pglock.advance('file:/reports/1', $token);
//
// They fail with SQLSTATE PGL01 (stale), PGL02 (no grant), PGL03 (another lock's row); the
// list is in migrations/0002_fencing.up.sql. The first of them alone, without guard or
// bind, refuses who comes after a newer writer, as a Checker does; it does not refuse a late
// write before the next holder's first.
//
// # Rights
//
// Writers need what the function grant_writer gives: to call guard, bind and advance. They
// need no right on the lock table. Who protects a table must own it, and needs CREATE on the
// schema of the locks and USAGE on its sequence fencing_protections (to take back PerTable
// also SELECT and DELETE on fencing_high_water). Who may create functions there must be trusted
// like the schema's owner. See package migrations.
//
// The idea is Kleppmann's, "How to do distributed locking" (2016), and before
// him Chubby's sequencers (Burrows, OSDI 2006).
package fencing
