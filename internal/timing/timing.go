// Package timing has every time constant of the lease protocol.
//
// The comments give the inequalities between the constants, which TestTimingInequalities checks.
// Constants that also stand in SQL text are compared with it by a test of package leasetable.
package timing

import "time"

// Leases. Options set all but the limits.
//
//	0 ≤ margin < TTL, 0 < renewEvery < TTL − margin   (leaseConfig.check)
//	MinTTL ≤ DefaultTTL ≤ MaxTTL
//	StatementBound < DefaultTTL − MaxMargin: a grant that took the longest time of a statement
//	can still be trusted
const (
	DefaultTTL = 30 * time.Second
	MinTTL     = 10 * time.Millisecond
	MaxTTL     = 10 * 365 * 24 * time.Hour
	MaxMargin  = 5 * time.Second // limits the default safety margin, a tenth of the TTL
)

// Statements.
//
//	LockTimeout < StatementBound/2: the server gives up a row lock before the client gives up
//	the statement
//	CancelGrace < StatementBound/2, the bound of one release attempt
//	FirstAttempt < StatementBound/2
//	4 · StatementBound ≤ OutagePatience: Acquire tries several times before it gives up
const (
	// StatementBound is the longest time of a statement. Those that wait for a row lock, such as a
	// release or a first grant of a name, give up after LockTimeout, and one that waits for guards
	// after a second, so only a server in trouble takes long.
	StatementBound = 5 * time.Second

	// FirstAttempt is the shortest limit of a call's first attempt, even if the call has less time.
	FirstAttempt = time.Second

	// OutagePatience is how long Acquire keeps trying while the server is unavailable, for instance
	// during a failover.
	OutagePatience = 30 * time.Second

	// LockTimeout is how long a release, or the first grant of a name, waits for a row lock. SQL
	// text repeats it, and also the constants that are marked "In SQL", which a test of package
	// leasetable compares.
	LockTimeout = 250 * time.Millisecond

	// PermitWait is how long the short form of a release of permits waits for the row of their
	// name. It is shorter than LockTimeout, so that a holder of that row who waits for the permits
	// gets them. In SQL.
	PermitWait = LockTimeout * 2 / 5

	// GuardWait is how long a revocation waits for the guarded transactions of the grant. In SQL.
	GuardWait = time.Second

	// CancelGrace is how long a call may continue after its context has ended. It waits for a
	// statement in progress, since canceling costs a connection and leaves the effect unknown, and
	// deletes its ticket, so that the next caller finds the lock free, which usually takes a
	// millisecond.
	CancelGrace = 20 * time.Millisecond
)

// RevokePauses are the times between attempts to revoke a grant whose caller has left, because the
// acquire statement may still be on its way to the server.
//
//	their sum ≤ OutagePatience, the bound of the whole clean-up
var RevokePauses = [...]time.Duration{time.Second, 4 * time.Second, 10 * time.Second}

// Connections.
//
//	7 · 500 ms < ConnectBound: TLS and SCRAM take about seven round trips
//	ConnectBound ≤ StatementBound: a statement that waited for a failed dial has used up its bound
//	DialPatience < ConnectBound/2: a second dial starts while the first one hangs
//	ConnectBound < MaxConnectBound: a busy server has more time for a dial
//	StatementBound ≤ InitBound
//	StatementBound < SpareIdle: a connection outlives the pauses of a call that is repeated
//	LoginPause ≤ MaxLoginPause, 3/2 · MaxLoginPause < StatementBound: a statement outlasts a pause
const (
	// ConnectBound limits a dial for each host, unless the connection string has a connect_timeout.
	ConnectBound = 5 * time.Second

	// MaxConnectBound is what ConnectBound grows to while a server accepts connections, and answers
	// none in time.
	MaxConnectBound = time.Minute

	// DialPatience is how long a dial may take before another one is started, unless recent dials
	// took longer.
	DialPatience = time.Second

	// InitBound limits the application's hooks and the first statements of a new connection.
	InitBound = 10 * time.Second

	// SpareIdle is how long a connection may be idle beside another idle one.
	SpareIdle = 20 * time.Second

	// LoginPause is the time to the next login after a rejected one, which doubles up to
	// MaxLoginPause.
	LoginPause    = time.Second
	MaxLoginPause = 3 * time.Second

	// ConnCloseBound limits how long the pool waits for the end of a connection, as in pgx.
	ConnCloseBound = 15 * time.Second
)

// Renewals. A lease is trusted for TTL − margin, and due after renewEvery, by default a third of
// the TTL. If an answer takes longer than renewPatience, the lease is due again, while the first
// attempt stays in flight.
//
//	trusted/6 ≤ renewPatience ≤ trusted/3, between MinRenewPatience and StatementBound
//	renewEvery + renewPatience < trusted, with the defaults and a TTL of 1 s or more: a second
//	attempt fits in (TestRenewalsFitIntoTheTTL)
//	jittered(d) ≤ d
//	MinRenewPatience < StatementBound
//	MaxRenewRetry < StatementBound
const (
	// MinRenewPatience is the shortest time before an unanswered renewal is sent again.
	MinRenewPatience = 50 * time.Millisecond

	// MaxRenewRetry is the longest pause after a renewal that failed.
	MaxRenewRetry = time.Second
)

// Waiting.
//
//	FirstPause < HandoffWait < MaxPause < PollBound < HeadGrace: without a listener, the head of
//	the queue polls before it is skipped
//	ExpirySpread < HeadStep < MaxPause
//	HeadWait + HeadWait < HeadGrace: the second waiter polls before the head is skipped
//	MaxPause + MaxPause < HeadGrace: a head behind a guard keeps its place by each of its attempts
const (
	FirstPause = 4 * time.Millisecond
	MaxPause   = 250 * time.Millisecond

	// PollBound is the longest time that a watcher relies on a notification.
	PollBound = time.Second

	// QuietPause is the longest time between two attempts of a waiter that relies on notifications
	// and on the looks of its refreshes.
	QuietPause = 5 * time.Minute

	// HandoffWait is how long a waiter whose own process holds the lock waits for a hand-off before
	// it draws a ticket.
	HandoffWait = 10 * time.Millisecond

	// HandoffPause is how long a process makes no hand-off after it has seen that other processes
	// wait for the same name.
	HandoffPause = time.Second

	// ExpirySpread and HeadStep limit when waiters poll after the holder's lease has expired, which
	// is within ExpirySpread, plus HeadStep for each position in the queue.
	ExpirySpread = 20 * time.Millisecond
	HeadStep     = 25 * time.Millisecond

	// HeadWait is the shortest time, extended at random by up to HeadWait, before a waiter polls
	// for a free lock while another waiter is ahead.
	HeadWait = 200 * time.Millisecond

	// HeadGrace is how long a released or expired lock is kept for the head of the queue before the
	// queue skips the head. In SQL.
	HeadGrace = 1500 * time.Millisecond
)

// Tickets.
//
//	2 · (RefreshEvery + SweepEvery) + StatementBound ≤ TicketTTL: a ticket outlives a refresh
//	that failed
//	TicketTTL ≤ DefaultTTL: the waiters that die with a holder do not delay the next grant
//	LeastLook < FirstLook < LookStep · 16 < RefreshEvery: 16 waiters are in the queue itself
//	IdleRowTTL < TicketTTL: an unused row is deleted while the client knows it
//	TicketTTL + StatementBound < DeadRowAge: only rows of dead clients are pruned
//	HeadGrace + SweepEvery < KeepTicket < TicketTTL: the ticket of a living caller for several names
//	is not skipped, even if its client refreshes it a little late
const (
	// TicketTTL is how long a ticket is valid without a refresh. Waiters behind a dead client wait
	// less long, because of HeadGrace.
	TicketTTL = 30 * time.Second

	// SweepEvery is the time between two rounds of the refresher, and RefreshEvery the longest time
	// between two refreshes of a ticket, which look at the lock as well: that is how late the loss
	// of a notification is noticed.
	SweepEvery   = time.Second
	RefreshEvery = 10 * time.Second

	// A waiter in the overflow list looks LookStep after its last look for each one before it, if
	// that is sooner than RefreshEvery, or sooner in a queue that moves, but not before LeastLook.
	// Its first look is at FirstLook at the latest, as is that of any other waiter. In SQL.
	LookStep  = 300 * time.Millisecond
	FirstLook = time.Second
	LeastLook = 100 * time.Millisecond

	// KeepTicket is how long after a refresh the queue does not skip a ticket for several names,
	// and how long a ticket for several permits is valid. Both are refreshed in each round, because
	// a dead one blocks the other waiters for that long, even if the name is free, or if it needs
	// more permits than are free.
	KeepTicket = 3 * time.Second

	// IdleRowTTL is how long a row without a valid ticket is kept for the next waiter.
	IdleRowTTL = time.Second

	// DeadRowAge is how long after its expiry a queue row is pruned. In SQL.
	DeadRowAge = time.Minute
)

// Deadlocks.
//
//	DeadlockAfter < 100 ms: so soon is a cycle found
//	2 · DeadlockEvery < NestedWaitTTL: a wait outlives a statement that failed
//	NestedEndWait < NestedWaitTTL
const (
	// DeadlockAfter is how long a call that holds locks waits before it registers its wait on the
	// server, which costs two statements.
	DeadlockAfter = 10 * time.Millisecond

	// DeadlockEvery is the time between two searches for a cycle that was not closed by the start
	// of a wait.
	DeadlockEvery = time.Second

	// NestedWaitTTL is how long the server remembers a wait that is not registered again. In SQL.
	NestedWaitTTL = 3 * time.Second

	// NestedEndWait is how long a call that the server takes for one that waits may continue after
	// its end, until the server knows of that, which usually takes a millisecond. Until then other
	// calls count it.
	NestedEndWait = time.Second
)

// The listener.
//
//	FirstReconnect < MaxReconnect < NoDeliveryPause ≤ NotifyBackoff
//	StatementBound < PingEvery: pings of one connection do not overlap
//	FirstPause < ListenAfter < MaxPause: few pauses are long without a listener
//	ListenerLook < PingEvery < ListenerIdle: the listener looks more than once before it closes
//	RefreshEvery + SweepEvery < ListenerIdle/2 − ListenerLook: a refresh that relied on the
//	listener, and the notification that it then waits for, are done before the listener closes
//	ListenerCloseBound < StatementBound
const (
	// PingEvery is how long the listening connection may be silent before it is pinged, because a
	// half-open connection would stay silent forever.
	PingEvery = 25 * time.Second

	// ListenAfter is how long a client waits in the queue for a name, with short pauses, or again
	// and again, before it opens a listening connection, which costs more than a wait that ends
	// soon, and much more if many others listen.
	ListenAfter = 100 * time.Millisecond

	// ListenerLook is how often the listener checks whether something needs it.
	ListenerLook = 3 * time.Second

	// ListenerIdle is how long the listening connection stays open when nothing needs it.
	ListenerIdle = 30 * time.Second

	FirstReconnect = 50 * time.Millisecond
	MaxReconnect   = 5 * time.Second

	// NoDeliveryPause is the pause after a connection that delivered no notification.
	NoDeliveryPause = 30 * time.Second

	// NotifyBackoff is how long a client sends no notifications after the server has refused one.
	NotifyBackoff = time.Minute

	// ListenerCloseBound limits the orderly close of the listening connection.
	ListenerCloseBound = time.Second
)

// Pruning.
//
//	StatementBound < PruneTTL: a pruner that dies holds the pruning lock for this long
//	MinRetention ≤ DefaultRetention
//	MaxPruneEvery ≤ DefaultRetention/4
const (
	DefaultRetention = 24 * time.Hour
	MinRetention     = time.Minute
	MaxPruneEvery    = time.Hour
	PruneTTL         = time.Minute
)
