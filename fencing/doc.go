// Package fencing refuses the writes of a holder whose lock has been granted to another.
//
// A lock alone can't do that. Its holder may be paused between its last look at the lock and its
// write (by the garbage collector, the hypervisor, a swapped page) for longer than the lock lasts.
// So every grant carries a [Token], larger than that of every grant before it, and the write itself
// is checked against it:
//
//	holder A: token 33 ──── paused ───────────────▶ writes with 33: ErrStale
//	                      A's lease expires
//	holder B:                     token 34 ── writes with 34: passes
//
// A [Fence] is the name of a lock with the token of one grant. A lease returns it by its method
// Fence. Another process can write for the holder: it parses the fence from text by [ParseFence].
//
// # Which one to use
//
//	what is written                     by                 use
//	rows of this database               this transaction   Check, or Guard of the lease
//	the same, in one round trip         some statements    Batch
//	rows that need the lock, also       an ORM, a person   Protect once, for the table;
//	from SQL that ignores it                               Bind in each transaction
//	something without a token column    a transaction      Advance
//	files, queues, other services       their servers      Checker, package fencehttp
//
// # Guarantees
//
//   - A transaction in which [Check], [Bind] or [Batch] succeeded commits only while its grant is
//     the newest of that name: a takeover waits for the end of the transaction. Renewals by the
//     holder do not wait.
//   - Only the current grant passes. An older grant, an expired or released one, and a token above
//     the current one, which no grant has, are refused.
//   - A protected table refuses to replace a row by one of an older grant. In strict mode it
//     refuses everything without a grant. That holds for INSERT, UPDATE, DELETE, MERGE, COPY, ON
//     CONFLICT and TRUNCATE, through views, rules, foreign keys and functions, for any client that
//     the threat model does not exclude.
//   - A holder that is paused in its transaction excludes others for as long as its lease had left
//     when it checked, not for as long as it is paused.
//   - The tokens that a [Checker] or [Advance] accepts for a resource never go down.
//
// # How a protected table works
//
//	Bind ──▶ locks the grant's row until tx ends ──▶ sets name and token, sealed, in the transaction
//	                                                            │
//	before each row:       writes the token to its column ◀─────┤
//	after the statement:   compares the old rows and the new ones with the grant:
//	    nothing bound ───────────────▶ ErrUnfenced (strict), or unchanged (permissive)
//	    another lock's row ──────────▶ ErrOtherLock (NamedBy)
//	    not the current grant ───────▶ ErrStale
//	    the old row's token is newer ▶ ErrStale
//	    the new row's token differs ─▶ ErrStale
//	    otherwise ───────────────────▶ written, and the grant's row is locked once more
//
// Name and token are settings of the transaction, which any role can set. The seal shows which of
// them Bind has set: it is a keyed hash over the settings, the transaction and its backend. Only
// the owner of the locks can read its key.
//
// # Threat model
//
// The fence stops a stale holder that does not know that it is stale, SQL that does not use locks,
// and a role that may write to a protected table and tries to get past the fence. The tests in
// attack_test.go show the following for such a role with INSERT, UPDATE, DELETE and TRUNCATE on the
// table, also with USAGE on the schema of the locks, or with the rights of grant_writer or
// grant_user and a grant of another lock:
//
//   - It writes no row of a strict table unless it has bound a grant itself, in the same
//     transaction, and no row of a named lock with another lock's grant.
//   - No row gets another token than that of the bound grant: no expression, trigger, rule, cast,
//     operator or setting of the role changes that, and no settings copied from elsewhere.
//   - No row of a newer grant is changed or removed.
//   - A grant that has expired, was released or was taken over can't be bound. One that was bound
//     in time stays valid in that transaction until another is granted, which each write prevents
//     until the transaction ends.
//   - It can't read the key of the seals, attach the fence's functions to its own tables, or run
//     code with the rights of the owner of the locks. Nor can the owner of a protected table.
//   - A role of grant_user can't leave a row in the lock tables that makes statements of others
//     fail, except those for the name of that row, which it may keep for itself anyway. Deleting
//     the row repairs that name. No token or ticket that it stores moves those of other names out
//     of their range, and no operator or function that it creates runs as another role. Only a
//     forged row of nested_waits, which says that the holder of one lock waits for another one,
//     makes nested calls for both fail with ErrDeadlock, for 3 s at a time.
//
// The fence does not stop:
//
//   - Roles that may disable triggers: the table's owner, superusers, and roles that may set
//     session_replication_role. Changes that arrive by logical replication are accepted, because
//     the publisher has checked them; ALWAYS triggers would make a subscriber refuse all of them.
//   - Roles with TRIGGER on the table, whose code runs in the transactions of its rightful writers:
//     it can do what those can, and change rows that MERGE moves between partitions after the fence
//     has judged them.
//   - Members of pg_create_subscription (PostgreSQL 16 and later) with rights on the table: they
//     write as a replica does.
//   - Defects of the server, so keep it at its newest minor release: MERGE has had several that
//     hide rows from triggers. (The known one that hides rows which move to another partition does
//     not matter here, since such rows are judged one by one.)
//   - Roles that know the key of the seals because they can read the table fencing_secret: the
//     owner of the lock tables, superusers and members of pg_read_all_data; roles with REPLICATION,
//     members of pg_read_server_files and pg_execute_server_program, and all who can read a backup,
//     a dump, or the files of the server. Replace a key that has leaked by UPDATE
//     pglock.fencing_secret SET secret = sha256(convert_to(gen_random_uuid()::text ||
//     gen_random_uuid(), 'UTF8')); transactions that have bound a grant by then fail once.
//   - Roles with CREATE in the schema of the locks. Only its owner needs that, and migrations
//     refuse a schema in which others have it. `pglock doctor` lists the rights that no role needs.
//   - Roles with the rights of grant_writer that know the current token of a lock, which is no
//     secret: holders pass it on, and refusals contain it. Such a role writes as that grant, keeps
//     the lock from others as long as its transaction lasts, also after the lease has expired (by
//     setting idle_in_transaction_session_timeout or by PREPARE TRANSACTION). It needs no token to
//     raise any mark of Advance, also that of a job of package schedule, which then skips ticks as
//     already run, or fails with ErrClock.
//   - Roles with the rights of grant_user, where locks are concerned: they may acquire any lock, or
//     take it from its holder by their own SQL, and write as the new holder. A takeover must lock
//     the row FOR UPDATE first, as this module does, or the writes of two holders overlap. In a
//     table without NamedBy a grant of any lock passes, so a table that such roles may write needs
//     NamedBy.
//   - Code that runs in a transaction that has bound a grant, as any role: the transaction is the
//     holder's until it ends.
//   - Any role that can lock the table: Protect, Unprotect and migrating down wait for it. A role
//     of grant_user can lock the lock tables themselves (LOCK TABLE), and no lock of the schema is
//     granted or renewed until its transaction ends: a transaction that pg_terminate_backend ends.
//
// # What it costs
//
// docs/reference/benchmarks.md has the times of a guarded statement in one round trip ([Batch]),
// and of statements that write to a protected table, to those of the same statements without a
// fence. Most of the latter is what PostgreSQL does before any check: a trigger before each row
// makes it lock the row first, with a WAL record, and the transition tables keep both versions of
// each row.
//
// # Limits
//
//   - A rollback does not undo what the transaction has done outside the database. Send the token
//     along, and let the receiver compare it, as the last row of the table above says.
//   - A partition that is attached later or again, or detached, refuses writes until [Protect] (or
//     Unprotect) is called; only TRUNCATE of an attached partition alone passes. So do all
//     partitions after ALTER TABLE … ENABLE TRIGGER USER of their table. Tables with foreign tables
//     as partitions can't be protected. If a table gets children by INHERITS later, writes to the
//     children are not fenced, and the next Protect refuses the table.
//   - TRUNCATE with a grant needs READ COMMITTED and SELECT on the token column. A table with
//     NamedBy refuses it, because its rows belong to many locks.
//   - The triggers compare rows at the end of their statement. A constraint may fail before that,
//     with its own error.
//
// # Failures
//
//   - The grant is not the current one: [ErrStale]. Do not retry with the same grant.
//   - The holder is paused inside: [ErrPaused]. A program that stops while it sends a batch larger
//     than the socket's buffer does not count as idle: only TCP keepalive, or transaction_timeout
//     of PostgreSQL 17, bounds that.
//   - The lease expires while the transaction works: it may still commit, because the lock is not
//     granted to another holder while it is open. Others find it busy, and wait for no row lock.
//     After a revocation, protected tables refuse what it writes from then on: [ErrStale].
//   - The connection breaks during a commit, which may have happened: the row's token shows it.
//   - The token column, or one that names the lock, is renamed: the table refuses writes until it
//     is protected again, with the new names. The column can't be dropped.
//   - A dump, which contains the key of the seals, is restored: pg_dump keeps columns, functions
//     and triggers, and restores the rows before the triggers. Restoring data alone into a
//     protected table needs pg_restore --disable-triggers; if that is interrupted, call Protect.
//
// # From other languages
//
// Every part is available as SQL: docs/guides/fencing-in-sql.md shows it, testdata/plain.sql has a
// whole session, and docs/reference/sql.md has the SQLSTATEs, and schema-and-rights.md the rights.
//
// The idea is from Kleppmann, "How to do distributed locking" (2016), and before that from Chubby's
// sequencers (Burrows, OSDI 2006).
package fencing
