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
// [Check] does it in the writer's own transaction. It locks the row of the grant
// so that no takeover can come between the check and the commit, and it lets the
// holder's renewals pass.
//
// What it does not: it can't protect what the transaction does outside the
// database. Send the token along, and let the other side compare.
//
// The idea is Kleppmann's, "How to do distributed locking" (2016), and before
// him Chubby's sequencers (Burrows, OSDI 2006).
package fencing
