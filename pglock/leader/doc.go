// Package leader elects one leader among any number of processes, keeps it while it lives, and tells
// everybody who it is.
//
//	err := leader.Run(ctx, client, "scheduler", func(ctx context.Context, t *leader.Term) error {
//		return serve(ctx) // ctx ends with the leadership
//	})
//
// Run campaigns, runs the function while this process leads, and campaigns again. For several
// elections, call it several times: one client serves all of them.
//
// [New] makes an [Election], for everything else:
//
//	e, err := leader.New(client, "scheduler", leader.WithPayload("10.0.0.7:8080"))
//	err = e.Run(ctx, work)                          // the same loop
//	for l, err := range e.Observe(ctx) { ... }      // the leader and its payload, whenever they change
//	mux.Handle("/healthz", leader.Health(0, e))     // fails if the work goes on without leadership
//
//	t, err := e.Campaign(ctx, "10.0.0.7:8080")      // one term, without the loop
//	err = t.Proclaim(ctx, "10.0.0.7:9090")          // another payload
//	err = t.Transfer(ctx, "replica-2")              // to a named candidate; "": to the first one
//	err = t.Resign(ctx)
//
// # An election is a lock
//
// The election's name is that of a lock, and a term is a lease of it, with its guarantees: see package
// [pglock]. A candidate is a waiter of the lock, so candidates are elected first come, first served,
// and wait without a connection. `pglock ls` and `pglock show` list leaders and candidates. The payload
// is the label "payload" of the lease.
//
//	         ┌──────────────── campaign again ────────────────┐
//	         ▼                                                │
//	campaign ── wait in the queue ── elected: a new token ── lead ── fn returns: resign
//	                                   │                      ├──── asked to resign: fn's ctx ends
//	                                   └ observers are told   └──── lease lost: fn's ctx ends
//
// # How long there is no leader
//
//   - After Resign and Transfer: for a hand-off, a few milliseconds. The next candidate is notified.
//   - After a leader's death, a pause or a cut network: until its TTL is over, 30 s by default. The next
//     candidate tries at that moment. Set it with WithLease(pglock.WithTTL(d)).
//   - While the database is down: the leader goes on until its lease's deadline, and nobody is elected.
//
// # One leader
//
// By the server's clock there is one leader at most. The leader learns of the end first: the context of
// its work is done before another candidate can be elected, even if the database hangs or the process
// was suspended. But a process that is suspended between a look at its context and a write writes late.
// The database refuses that write if it is guarded in the same transaction:
//
//	if err := t.Lease().Guard(ctx, tx); err != nil { // ErrStale: another candidate was elected
//		return err
//	}
//	... write, commit
//
// Other systems compare t.Lease().Token(), which grows with every term. See package fencing.
//
// # Observers
//
// [Election.Observe] returns the newest leader, and then each newer one. Changes that come while the
// caller is busy are collected into one. An observer that listens learns of an election, a new payload
// and a resignation within milliseconds, by a notification that is sent only if somebody observes. All
// observers read the row once a second as well, so a lost notification costs a second.
//
// # Limits
//
//   - Run waits for its function: one that ignores its context keeps this process from campaigning, and
//     works without leadership. [Health] reports that.
//   - Of the candidates that share a client, others see only the first one in the queue, and can
//     transfer the leadership to that one only.
//   - A payload has 8 KiB at most.
package leader
