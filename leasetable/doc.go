// Package leasetable grants locks as leases: rows of a table that say who holds a
// name until when, renewed while the holder lives.
//
// # What it guarantees
//
//   - By the server's clock, a name has at most one live grant.
//   - Every grant carries a [fencing.Token] larger than that of every earlier one.
//   - The holder stops first: the lease's Context is done before the server could
//     grant the lock to anyone else, also when the server hangs, the network is
//     cut, or the process was paused and looks at Err.
//   - Renewing and releasing touch their own grant only.
//   - A failed try writes nothing. A waiter holds no connection and no transaction: a
//     thousand of them cost a client what one does.
//   - First come, first served, across processes; nobody overtakes those who wait, unless
//     with [WithBarging].
//   - A row that somebody else's transaction has locked delays nobody: it is busy.
//   - A call whose context ends leaves no lock and no connection behind.
//
// # What it does not
//
// The order of the queue is a courtesy, not an invariant: a crash of the server empties it,
// and who does not come within one and a half seconds of a release is passed over.
//
// A process that sleeps between looking at its lease and writing writes late.
// [Lease.Guard] makes the database refuse that. A server whose clock jumps
// forward ends leases early. A machine that is suspended stops the monotonic
// clock that deadlines are kept in.
//
// # A lease's life
//
//	            ┌─ busy: draw a ticket, rest until woken ───┐
//	            ▼                                           │
//	Acquire ── one statement: free, and our turn? ── no ────┘
//	                           │ yes: token drawn, row written
//	                           ▼
//	                         held ── renewed at a third of the TTL ──┐
//	                           │  ▲                                  │
//	                           │  └──────────────────────────────────┘
//	                           ├── Release ─────────▶ released, the row is free
//	                           ├── row not ours ────▶ lost
//	                           └── deadline reached ▶ lost
//
// # Waiting
//
// The goroutines of a process that want the same name form a line, whose first asks for all.
// For the line the process holds one ticket: a row of lock_waiters, drawn when the lock
// was refused. A release looks up the smallest ticket that counts and notifies that
// client, on its own channel, in the same statement; where nobody waits it notifies nobody.
// Between goroutines of one process the lock is handed over in one statement, with a new
// token, as long as no other process waits.
//
//	release ── ticket? ── no ──▶ free
//	              │ yes                       ┌── granted: the ticket is used up
//	              └── NOTIFY its client ── asks ── refused: rests again
//
// A notification is a hint. The first in line asks again by itself: soon after it has
// drawn its ticket, since a release that was under way may not have seen it, then less and
// less often, once a second at the least; and when the holder's lease would end. Tickets
// count for 15 s unless refreshed. A ticket whose client does not come is passed over
// 1.5 s after the release, and is void then.
//
// # Statements
//
// A lone call takes a statement for one row. Calls that come while others are under way
// gather, and share the next statement: there is no timer. Up to 128 go into one, sorted by
// name; one that is blocked or at fault neither delays nor fails the others.
//
// The deadline counts from before the request was sent, in the local monotonic
// clock, and ends a safety margin early. The server counts from when it got the
// request, in its own. No clocks are compared.
//
// # When things fail
//
//   - The holder dies: the lock is free when its TTL is over, and the first in the queue
//     asks in that moment.
//   - A waiter dies: those behind it wait for up to two seconds more, once.
//   - The listening connection fails: everybody polls until there is a new one. It is tried
//     every 10 s, since a connection that died half-open says nothing. A new one first has
//     to hear of itself: behind a pooler that passes nothing on everybody polls.
//   - The server is gone: Acquire keeps asking for up to 30 s, renewals are tried
//     again until the deadline, then the lease is lost.
//   - An answer is lost: the statement is repeated. Acquiring is recognised by its
//     request, renewing and releasing by name and token.
//   - A caller leaves while its grant is on the way: the grant is given back, also if it comes
//     some seconds later.
//   - The primary is replaced by a standby that lacks the last grants: its tokens
//     are above all of the old one's (see migrations, next_fencing_token).
package leasetable
