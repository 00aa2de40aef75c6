// Package waitlist queues the goroutines of a process that wait for the same lock, and holds the
// process's ticket in the queue on the server.
//
// Only the head of each local queue contacts the server, so a thousand waiters cost as many
// statements as one, and acquire the lock in the order of arrival. The exception is an entry whose
// time ends before it was the head, which makes one attempt, without the ticket, before it leaves.
// For each local queue the process holds one ticket, which is a row of lock_waiters.
//
// # States of a local queue
//
//	entries  row                   state and transitions
//	0        -                     absent: Push makes it waiting
//	1+       none, unknown, stale  waiting: DrawTicket makes it joining
//	any      none, unknown, stale  joining, with one statement for all entries, whose answer makes
//	                               it joined; if that is lost, the row is unknown
//	1+       overflow, queued      joined, until an attempt uses the ticket up, or a look (see the
//	                               type looks) does not find it, which makes it waiting again
//	0        stale                 idle: the row stays for the next waiter; after timing.IdleRowTTL
//	                               the refresher deletes it, and the queue is absent
//
// When the last entry leaves a queue that is joined, or whose row is unknown, the row is deleted
// in the background, and the queue is absent. If the queue is joining, this happens when the
// statement ends. Until the ticket is deleted it would keep the next caller of this process from a
// free lock, so Queues.AwaitRemoval waits for that.
//
// Calls that wait for several names at once (leasetable.Request.All) wait in the same queue as
// other calls for the same names. That queue also has one ticket, with a row of lock_waiters for
// each name. It shares no row with the queues of its names, because on the server it is another
// client, with a number.
//
// # States of an entry
//
//	state       its request is used            next states
//	waiting     by nothing                     attempting (BeginAttempt), reserved (Reserve), left
//	attempting  by an attempt of its caller    waiting (EndAttempt)
//	reserved    by a release that hands off    delivered (Deliver), waiting (CancelHandoff), left
//	delivered   by its caller                  waiting (EndHandoff), left
//	left        by nothing                     -
//
// While the caller of a delivered entry checks the result, the entry begins no attempt and is not
// reserved again, because otherwise the same grant would be returned twice and revoked once.
package waitlist
