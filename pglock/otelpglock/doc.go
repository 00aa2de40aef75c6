// Package otelpglock records OpenTelemetry metrics and traces of a pglock client.
//
//	observer, err := otelpglock.New()
//	...
//	client, err := pglock.Open(ctx, pool, pglock.WithObserver(observer))
//
// It is a separate module, so that only programs that use it depend on OpenTelemetry.
//
// # Metrics
//
//	name                      kind             unit        attributes
//	pglock.acquire.duration   histogram        s           pglock.group, pglock.outcome, error.type
//	pglock.acquire.attempts   counter          {attempt}   pglock.group
//	pglock.acquire.waiting    up-down counter  {call}      pglock.group
//	pglock.acquire.ahead      histogram        {waiter}    pglock.group
//	pglock.handoffs           counter          {handoff}   pglock.group
//	pglock.lease.active       up-down counter  {lease}     pglock.group
//	pglock.lease.duration     histogram        s           pglock.group, pglock.end
//	pglock.lease.losses       counter          {lease}     pglock.group, pglock.loss.reason
//	pglock.renewal.duration   histogram        s           pglock.group, error.type
//	pglock.renewal.remaining  histogram        1           pglock.group
//	pglock.release.duration   histogram        s           pglock.group, error.type
//	pglock.batch.size         histogram        {operation} pglock.operation
//	pglock.batch.duration     histogram        s           pglock.operation, error.type
//	pglock.results            counter          {result}    pglock.kind, pglock.outcome, and a subject
//	pglock.result.duration    histogram        s           pglock.kind, pglock.outcome, and a subject
//	pglock.leader.active      up-down counter  {term}      pglock.lock.name
//	pglock.listener.active    up-down counter  {connection}
//	pglock.tick.lateness      histogram        s           pglock.lock.name
//	pglock.tick.next          gauge            s           pglock.lock.name
//	pglock.tick.last_success  gauge            s           pglock.lock.name
//
// pglock.lease.active keeps a lease that Close could not release. docs/reference/metrics.md says
// what to read from each metric.
//
// pglock.results counts what is built on locks: see [observe.Kind]. Its subject is pglock.lock.name
// for elections and jobs, none for the listening connection, and otherwise pglock.group.
// pglock.tick.next is 0 if no tick is due.
//
// Counters for alerts start at 0, since the increase of a series that begins with 1 is not seen:
// those of a group when its first acquire ends (without [WithGroup] in [New]), and those of an
// election or a job when it is announced. The value of pglock.listener.active starts at 0 as well.
// The directory docs/monitoring has a dashboard and alerts for Prometheus.
//
// The attributes have the following values:
//
//	pglock.outcome      granted, busy, timeout, canceled, closed, unavailable, failed, and those of results
//	pglock.kind         guard, tx, term, tick, once, listener, and those of the program
//	pglock.end          released, handed_over, expired, max_hold, revoked, ended
//	pglock.loss.reason  expired, max_hold, revoked, ended
//	pglock.operation    acquire, release, renew
//	error.type          timeout, canceled, closed, unavailable, lost, privilege, schema, _OTHER
//
// error.type follows the semantic conventions, so it is missing if nothing failed. A lock that is
// held is not a failure for a call that does not wait, and has the outcome busy.
//
// # Groups
//
// A program may have as many lock names as rows that they protect, so names are no attributes of
// metrics, except those of elections and jobs, which are few. By default the only group is
// "default". [WithGroup] sets a function that maps names to groups.
//
// # Traces
//
// Each Acquire and TryAcquire is one span, "pglock acquire", in the trace of its context. Its
// attributes are pglock.lock.name, pglock.group, pglock.outcome, pglock.attempts, pglock.token,
// pglock.holder, pglock.queued, pglock.ahead, pglock.handed_off and error.type. Its status is Error
// with each error.type. pglock.blocker is the token of the grant that the call waited for, which is
// the pglock.token of another span, in this process or in another one.
//
// The statements that a client sends are not children of the span, because several calls share a
// statement. See docs/reference/protocol.md for what a query tracer of the pool sees.
package otelpglock
