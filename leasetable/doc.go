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
//   - A failed try writes nothing. A waiter holds nothing but a timer, and of all that
//     wait for a name in one process only the first asks; they are served in order.
//   - A call whose context ends leaves no lock and no connection behind.
//
// # What it does not
//
// A process that sleeps between looking at its lease and writing writes late.
// [Lease.Guard] makes the database refuse that. A server whose clock jumps
// forward ends leases early. A machine that is suspended stops the monotonic
// clock that deadlines are kept in.
//
// # A lease's life
//
//	            ┌────────── busy: sleep, ask again ─────────┐
//	            ▼                                           │
//	Acquire ── one statement: free? ── no ──────────────────┘
//	                           │ yes: token drawn, row written
//	                           ▼
//	                         held ── renewed at a third of the TTL ──┐
//	                           │  ▲                                  │
//	                           │  └──────────────────────────────────┘
//	                           ├── Release ─────────▶ released, the row is free
//	                           ├── row not ours ────▶ lost
//	                           └── deadline reached ▶ lost
//
// The deadline counts from before the request was sent, in the local monotonic
// clock, and ends a safety margin early. The server counts from when it got the
// request, in its own. No clocks are compared.
//
// # When things fail
//
//   - The holder dies: the lock is free when its TTL is over.
//   - The server is gone: Acquire keeps asking for up to 30 s, renewals are tried
//     again until the deadline, then the lease is lost.
//   - An answer is lost: the statement is repeated. Acquiring is recognised by its
//     request, renewing and releasing by name and token.
//   - A caller leaves while its grant is on the way: the grant is given back.
//   - The primary is replaced by a standby that lacks the last grants: its tokens
//     are above all of the old one's (see migrations, next_fencing_token).
package leasetable
