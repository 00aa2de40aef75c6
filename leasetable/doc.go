// Package leasetable grants locks as leases: rows of a table that say who holds a name until when,
// and that are renewed while the holder lives.
//
// # Guarantees
//
//   - By the server's clock, a name has at most one live grant.
//   - Every grant has a [fencing.Token] larger than that of every earlier one.
//   - The holder stops first. The lease's Context, and every context made by [Lease.WithContext],
//     is done before the server could grant the lock to another holder. This also holds when the
//     server hangs, the network is cut, or the process was suspended and then calls Err or Done.
//     [Client.Revoke] is the exception.
//   - After a failover, the guarantees above depend on the kind of replication: see Failover.
//   - Renewing and releasing affect only their own grant.
//   - A failed try writes nothing. A waiter holds no connection and no transaction: a thousand
//     waiters cost a client the same connections as one.
//   - The lock is granted first come, first served, across processes. Only a call with
//     [WithBarging] overtakes waiters.
//   - A row that another transaction has locked is busy. It delays no other lock. A role without
//     rights on the tables can't delay a grant.
//   - A call whose context ends leaves no lock and no connection behind.
//
// # Limits
//
// The order of the queue is not an invariant. A crash of the server empties the queue. A waiter
// that does not respond within 1.5 s of a release is skipped.
//
// A process that sleeps between reading Err and writing writes late. [Lease.Guard] makes the
// database refuse that write. A server whose clock jumps forward ends leases early. A suspended
// machine stops the monotonic clock, which deadlines are measured with.
//
// Each name has a row, which is kept until the name has been idle for the retention
// ([WithRetention], 24 h by default). [fencing.Advance] keeps a row for each resource forever.
// Nothing else bounds their number: limit the names that untrusted callers can create.
//
// # Life of a lease
//
//	            ┌─ busy: draw a ticket, sleep until woken ──┐
//	            ▼                                           │
//	Acquire ── one statement: free, none ahead? ─── no ─────┘
//	                           │ yes: token drawn, row written
//	                           ▼
//	                         held ── renewed at a third of the TTL ──┐
//	                           │  ▲                                  │
//	                           │  └──────────────────────────────────┘
//	                           ├── Release ─────────▶ released, the row is free
//	                           ├── Transfer ────────▶ released, a named waiter is granted the lock
//	                           ├── HandOver ────────▶ handed over, another process goes on
//	                           ├── row not ours ────▶ lost
//	                           └── deadline reached ▶ lost
//
// # Holding rules
//
// Times count from the grant, from its end, or from a renewal:
//
//	grant                  WithMinHold                     WithMaxHold
//	  ├──────────────────────────┼──────────────────────────────┼─────────────────┐
//	  │ a released lock stays    │ a released lock is free      │ no renewals,    │ lost
//	  │ locked, without a holder │ at once                      │ holder is told  │
//
//	last renewal           deadline    TTL over          WithLockDelay over
//	  ├──────────────────────────┼──────────┼──────────────────────┐
//	  │ the holder trusts it     │ margin   │ others still wait    │ free
//
// A lease with WithMinHold is not handed off to a waiter of the same process, so that the server's
// clock decides. The waiter makes an attempt when the time is over. [Client.Adopt] goes on with the
// grant of another process, which ends its own lease with [Lease.HandOver]. A lease from
// [WithFailOpen] may have no grant: see [Lease.Unlocked].
//
// # Waiting
//
// The goroutines of a process that wait for the same name form a local queue. Only its head
// contacts the server. For the whole local queue, the process holds one ticket: a row of
// lock_waiters, drawn when the lock was busy. A release finds the smallest valid ticket and
// notifies its client on the client's own channel, in the same statement. Without waiters it sends
// no notification. While no other process waits, a release hands the lock off to the local head in
// one statement, with a new token.
//
//	release ── ticket? ── no ──▶ free
//	              │ yes                       ┌── granted: the ticket is used up
//	              └── NOTIFY its client ── try ── busy: sleep again
//
// A notification is a hint. The head also polls: soon after it has drawn its ticket, since a
// release in progress may not have seen the ticket, then less and less often, at least once a
// second, and when the holder's lease would expire. A ticket is valid for 15 s unless refreshed. If
// the client of a ticket does not respond within 1.5 s of the release, the queue skips it, and its
// ticket becomes invalid.
//
// [Lease.Transfer] passes the queue by: the statement that ends the grant makes another one for the
// request of a named waiter, which lasts for 1.5 s. The waiter is notified, makes its attempt, and finds
// that its request has the lock. That confirms the grant for the rest of its TTL. If the waiter is dead,
// the grant expires, and the queue goes on.
//
//	Transfer ── the waiter's grant, for 1.5 s ── NOTIFY ── attempt ── confirmed, held
//	                                                 └── no attempt ── expired, free for the queue
//
// # Who holds what
//
// [Client.Locks] lists the locks with their holders and waiters, [Client.Get] describes one, and
// [Client.Watch] follows one. The views locks_held and locks_waiting tell the same in SQL: SELECT on
// them and USAGE on the schema are enough. The row of a lock keeps the holder before, when its grant
// ended, and how.
//
// [Client.RequestRelease] asks a holder to stop; [Client.Revoke] ends its grant:
//
//	RequestRelease ── the row has the reason ── NOTIFY, or the next renewal ──▶ ReleaseRequested
//	Revoke ── the row is free, guards fail ── NOTIFY, or the next renewal ──▶ lost, ErrRevoked
//	             └── guarded transactions end ── NOTIFY the head of the queue ──▶ the next grant
//
// # Permits
//
// A Semaphore has n permits, and an RWLock has 2^30, of which a reader takes one and a writer takes
// all. The row of the name is the gate: it has the number of permits and their use. A statement that
// grants or releases permits locks the gate first, until its commit, so grants of one name come one
// after the other. Each grant is a row of lock_permits. A grant of all permits is exclusive, and is
// in the row of the name like any other lock. [Lease.Downgrade], and Resize under a holder of all
// permits, move a grant from the gate to lock_permits, with its token. [Lease.TryUpgrade] ends a
// reader's grant and makes a writer's in one step.
//
// Tickets work as above. The head of the queue waits until there is room for it, and later waiters
// wait behind it, even if there is room for them. A release notifies the head if it fits. A grant
// that leaves room for the next head notifies that one. The local queue has no hand-off.
//
//	               ┌─ room for it, or it expired ─┐
//	               ▼                              │
//	Acquire ── gate: room, none ahead? ── no ──▶ wait
//	               │ yes: token drawn, in_use grows, row written
//	               ▼
//	             held ── Release: row deleted, in_use shrinks, head notified
//
// A guarded transaction locks its permit, not the gate. A permit that it uses counts until the
// transaction ends, even if the permit has expired or was released.
//
// # Several names
//
// [Client.AcquireAll] acquires several names, or none. A call that waits draws one ticket and stands
// with it in the queue of each name. A statement locks the rows of all names, and grants them if all
// are free and the ticket is the smallest valid one at each of them; otherwise it changes nothing.
//
// Of all callers that wait, the one with the smallest ticket is the head of each of its queues. It
// waits for holders only, nobody else is granted a name that is free for it, and it holds nothing
// meanwhile. So it gets its turn, and then the next one does: there is neither deadlock nor
// starvation, whatever the overlaps are.
//
//	          b is held                       b is released
//	a  ──── free, idle: the ticket 5 is first ────┬─ granted to the ticket 5
//	b  ──── held ─────────────────────────────────┘
//	        the ticket 5 waits for a and b
//
// The cost is the idle time of a in this picture. It is at most the time that the call waits as the
// head of a queue. Callers that hold their names for long make others wait for names that nobody
// uses. A caller with [WithBarging] overtakes here as well.
//
// A waiter that dies is skipped when its client has not refreshed its ticket for 3 s, and the name
// has been free for 1.5 s. Its ticket is invalid 15 s after the last refresh.
//
// The lease has a part for each name, with a row, a renewal and events of its own. All rows have the
// same token: the parts are one grant. The end of a part ends the lease, and Release releases the
// parts in one statement.
//
// # Nested calls
//
// The contexts of a lease carry it: [Lease.Context], [Lease.WithContext], and those derived from
// them. An acquire of the same lock under such a context would wait for itself. It fails at once
// with ErrHeldByCaller, or joins the lease with [WithJoin]. [FromContext] returns the lease.
//
// # Architecture
//
// Imports go downwards only:
//
//	leasetable                  the API and the state machines of a call and of a lease
//	  internal/batch            coalesces operations into batches, which a few workers send
//	  internal/waitlist         local queues, tickets and the listener
//	  internal/store            the statements: all SQL, the connections, the checks of the server
//	  internal/timing           the time constants and the inequalities between them
//
// The path of an Acquire:
//
//	Acquire            acquire.go   checks the options
//	acquisition.wait   wait.go      nobody waits: one attempt; otherwise the local queue
//	attempt            attempt.go   through a worker, or on the caller's goroutine
//	Store.AcquireFast  store        one row, one round trip; AcquireFull if that grants nothing
//	checkGrant         acquire.go   can the grant still be trusted?
//	newLease           lease.go     deadline, timer, plan of renewals
//
// A call that has to wait goes through these steps, once it is the head of its local queue:
//
//	    ┌──────────── refused, has a ticket ◀─────┐
//	    ▼                                         │
//	sleep ── woken, time is up ──▶ attempt ── granted ──▶ lease
//	    │                             ▲   │
//	    │                             │   └─ refused, no ticket ─▶ draw a ticket
//	    └── handed off ──▶ lease      └──────────────────────────────────┘
//
// The states of an attempt are in attempt.go, those of a lease at [Lease], those of a local queue
// and its entries in package waitlist.
//
// # Statements
//
// A lone call uses the single-statement form. Calls that arrive while other statements are in
// progress gather and share the next statement, at most 128 of them, sorted by name. There is no
// timer. An operation that is blocked or at fault neither delays nor fails the others.
//
// The deadline counts from just before the request was sent, on the local monotonic clock, and ends
// a safety margin early. The server counts from when it received the request, on its own clock. The
// two clocks are never compared.
//
// # Connections and time
//
// A client has its own connections, so an application that exhausts its pool loses no lease. A dial
// may take 5 s for each host, or the connect_timeout of the connection string. Hooks and the first
// statements of a connection have 10 s. Hooks must return when their context ends. If a dial takes
// longer than a second, another one is started. So a client works again soon after an address does,
// even while older dials hang.
//
// A renewal without an answer after a sixth of the trusted time is sent again on another
// connection. The first attempt stays in flight for up to 5 s. On a slow network the time before
// the second attempt grows with the measured answer times, up to a third. With the default renewal
// interval, a lease survives answer times of up to 30 % of its TTL.
//
// # Observing
//
// An [Observer] receives the events of a client: [WithObserver] says which, and on which goroutines.
// [WithLogger] logs the same events: grants, waits and releases at Debug, losses and failed renewals
// at Warn. Package otelpglock, a module of its own, makes OpenTelemetry metrics and traces of them.
// Without an observer an event costs a few nanoseconds.
//
// The client's connections have the application_name of the pool followed by " (pglock)", or
// "pglock" if it has none. It shows them in pg_stat_activity and in the server's log. PostgreSQL
// keeps 63 bytes of it, and the client shortens the pool's part.
//
// The pool's query tracer (ConnConfig.Tracer) sees the client's connections as well: connecting,
// each statement of the protocol, its preparation, and the LISTEN of the listening connection. It
// does not see the checks of a new connection, which bypass pgx.Conn, nor the wait for
// notifications. A listener of [WithListener] has no tracer. The tracer's context is that of the
// client for acquires, releases, renewals and tickets, since several calls share a statement: it has
// no values, so the spans of a tracer have no parent. For Get, Prune and Extend it is derived from
// the context of the call. A tracer that blocks delays the statement, and so a renewal. Tracers of
// pgxpool see nothing: the client's connections are not in the pool.
//
// # Sizing
//
// Each grant and each release writes a new version of the lock's row. PostgreSQL removes old
// versions on the way (heap-only updates, no vacuum needed), but only those that no running
// transaction can still see. A long transaction in the same database, such as a report, a dump or a
// forgotten session, keeps all versions since its start, and every acquire of a name reads those of
// that name. A hot name slows down linearly: in one measurement from 0.3 ms for a pair to 2 ms
// after 10,000 pairs and 6 ms after 20,000. Other names hardly slow down. The end of the
// transaction ends the delay. If you have both hot names and long transactions, put the lock tables
// into a database of their own, or limit transactions with idle_in_transaction_session_timeout and,
// from PostgreSQL 17 on, transaction_timeout. Replication slots and standbys with
// hot_standby_feedback keep versions in the same way.
//
// Row security on the lock tables must show a client all rows. A hidden row looks as if another
// caller always were faster, and Acquire waits until its context ends.
//
// # When things fail
//
//   - The holder dies: the lock is free when its TTL is over, later with WithLockDelay, or with a
//     WithMinHold that is longer. The head of the queue tries at that moment.
//   - A waiter dies: the waiters behind it wait up to two seconds longer, once. They wait up to four
//     seconds if it waited for several names or permits.
//   - The listening connection fails: waiters poll until there is a new one. It is tested every 10
//     s, since a half-open connection reports nothing. A new one must first receive a notification
//     from its own client. Behind a pooler that delivers none, waiters poll.
//   - The server is gone: Acquire keeps trying for 30 s. Renewals are tried again until the
//     deadline; then the lease is lost. After a time-out, a client pings its idle connections
//     before it uses them again.
//   - The server rejects the login (a changed password, a revoked right): calls fail with ErrLogin at
//     once, since waiting does not help. Renewals are tried again until the deadline.
//   - The server refuses a notification, for lack of a right or because its queue is full: the
//     release is repeated without it. Waiters poll, and notice the release within a second. The
//     client tries again after a minute.
//   - The holder releases the lock while a guarded transaction of its own is open: the lock is busy
//     until that transaction ends, which sends no notification. The head polls, and is late by
//     about an eighth of the time that it had to wait.
//   - An answer is lost: the statement is repeated. The server recognizes an acquire by its
//     request, and a renewal or release by name and token.
//   - A caller leaves while its grant is on the way: the grant is revoked, also if it arrives
//     seconds later. The caller's ticket leaves the queue before the call returns, unless the
//     server takes longer than 20 ms.
//   - Pruning or deleting queue rows fails: the failure is logged, and the client tries again
//     later. The tables grow meanwhile.
//
// # Failover
//
// With synchronous replication (synchronous_standby_names, and synchronous_commit not set to local)
// all guarantees hold across a failover. A grant or a renewal is reported after its commit has
// reached a standby. If the wait for the standby is cut off, the attempt counts as unanswered, and
// the repeated request commits another change of its row before its grant is reported. Releases are
// not awaited: a failover that loses one costs the rest of the TTL.
//
// With asynchronous replication a failover may lose the last grants. The new primary then grants
// such a name at once, while its first holder trusts its lease until the deadline. For up to one
// TTL there are two holders, unless the first one finds out by a renewal. Its [Lease.Guard] fails
// on the new primary, so guarded writes there are safe. Its writes on the old primary are lost with
// that server.
//
// Tokens grow across a failover in both cases: their upper bits are the timeline of the write-ahead
// log. Two standbys may be promoted to the same timeline one after the other, because neither knows
// of the other. Then the order of tokens depends on the clocks of the two servers, and on fewer
// than 10,000 grants and tickets a second on average since the previous promotion. A WAL archive
// that all servers share rules that out.
//
// A client refuses a server that is behind the tokens it has seen: an old primary that came back,
// or a copy of a data directory that was started without recovery.signal or standby.signal and
// stays on its timeline. The client then tries the next host of the connection string, or returns
// ErrUnavailable. There are two limits. A new client has seen no token, so the cluster manager must
// keep an old primary away. And clients check new connections only, so a pooler must not switch the
// server of an open one.
//
// With Patroni, set synchronous_mode and synchronous_mode_strict. Without the strict mode, a primary
// that has lost its last standby goes on alone, as with asynchronous replication. A paused or
// isolated Patroni leaves an old primary that still answers: with synchronous replication it can't
// report a commit any more, and without it grants locks until somebody stops it, for which Patroni
// has its watchdog. The time without a grant is Patroni's ttl, not the TTL of the lease: 19 s to 26 s
// with a ttl of 20 s, and 4 s for a switchover, in `make ha`. A Patroni that takes back the leader's
// key after a pause, as 3.0 did once with the API of etcd 3, loses commits even with synchronous
// replication: clients that have seen the lost tokens refuse such a primary.
//
// pg_upgrade, and a restored dump of the whole schema, need nothing. If rows arrive without the
// sequence (logical replication, a dump of one table), run this before the first client connects:
//
//	SELECT pglock.lift_fencing_tokens(name)
//	FROM pglock.distributed_locks ORDER BY token DESC LIMIT 1
package leasetable
