// Package leader elects one leader among any number of processes, keeps it while it lives, and lets
// every process find it.
//
//	err := leader.Run(ctx, client, "scheduler", func(ctx context.Context, t *leader.Term) error {
//		return serve(ctx) // ctx ends with the leadership
//	})
//
// Run campaigns, runs the function while this process leads, and campaigns again. For several
// elections, call it several times on one client. [New] makes an [Election], for everything else:
//
//	e, err := leader.New(client, "scheduler", leader.WithPayload("10.0.0.7:8080"))
//	err = e.Run(ctx, work)                          // the same loop
//	for l, err := range e.Observe(ctx) { ... }      // the leader and its payload, whenever they change
//
//	t, err := e.Campaign(ctx, "10.0.0.7:8080")      // one term, without the loop
//	err = t.Proclaim(ctx, "10.0.0.7:9090")          // another payload
//	err = t.Resign(ctx)
//
// # An election is a lock
//
// The election's name is that of a lock, and a term is a lease of it, with its guarantees: see
// package [pglock]. A candidate is a waiter of the lock, so candidates are elected first come,
// first served, and wait without a connection. The payload is the label "payload" of the lease.
//
//	         ┌──────────────── campaign again ────────────────┐
//	         ▼                                                │
//	campaign ── wait in the queue ── elected: a new token ── lead ── fn returns: resign
//	                                   │                      ├──── asked to resign: fn's ctx ends
//	                                   └ observers see it     └──── lease lost: fn's ctx ends
//
// Functions of the lock suffice for the following:
//
//   - The candidates in the order of the queue are the Waiters of client.Get(ctx, name): of each
//     client, the first one.
//   - A leader that restarts calls t.Lease().HandOver, and its successor continues the term with
//     client.Adopt(ctx, fence). Token and payload stay, and no other candidate is elected in
//     between. Metrics have no such term, unless the program reports it by client.Report.
//   - A health check fails if [Election.Term] returns a term that was lost and not resigned, since
//     then the work does not stop. The examples show all three.
//
// # How long there is no leader
//
//   - After Resign: for a hand-off, a few milliseconds, because the next candidate is notified.
//   - After a leader's death, a pause or a cut network: until its TTL has passed, 30 s by default.
//     The next candidate tries at that moment. Set it with WithLease(pglock.WithTTL(d)).
//   - While the database is down: the leader continues until its lease's deadline.
//
// # One leader
//
// By the server's clock there is one leader at most. The leader notices the end first: the context
// of its work is done before another candidate can be elected, even if the database hangs or the
// process was suspended. A process that is suspended after it checked its context can still write
// late, unless t.Lease().Guard(ctx, tx) is called in the transaction of the write: see package
// fencing.
//
// Run waits for its function, so one that ignores its context works without leadership, and keeps
// this process from campaigning.
package leader
