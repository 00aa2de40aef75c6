// Package observe describes what a client of package pglock does, for metrics, traces and logs. A
// program passes functions to pglock.WithObserver for the events that it needs; module otelpglock
// has them for OpenTelemetry.
package observe

import (
	"context"
	"time"

	"github.com/pglock/pglock-go/fencing"
)

// Hooks are called with the events of a client. A nil function ignores its events, and later
// versions may add functions and fields of events.
//
// The functions must be safe for concurrent use. They must not block, because they are called where
// the event happens, so a slow one delays its call and later work, such as the other leases of an
// answered renewal, but neither a lease nor its end, because the result takes effect first. A
// function that passes events to something slow puts them into a buffer, and drops those that do
// not fit. A panic of a function ends there: the client logs it at Error and continues, as if the
// function had returned.
//
// A call or a lease of several names raises an event for each of them. The context is never done,
// and has the values of the context that was passed to Acquire, or none for batches.
type Hooks struct {
	// Wait is called when an Acquire begins to wait, at most once for each call.
	Wait func(ctx context.Context, e WaitEvent)

	// Acquire is called when an Acquire or TryAcquire ends, granted or not, and when Adopt has
	// adopted a grant. A call with an invalid argument, on a closed client, or whose context holds
	// the lock raises no event.
	Acquire func(ctx context.Context, e AcquireEvent)

	// Handoff is called, in addition to Acquire and Release, when a release has granted the lock to
	// the next waiter of the same process. The context is that of the released lease.
	Handoff func(ctx context.Context, e HandoffEvent)

	// Renewal is called for each lease that a statement renews or fails to renew.
	Renewal func(ctx context.Context, e RenewalEvent)

	// Loss is called, instead of Release, when a lease is lost.
	Loss func(ctx context.Context, e LossEvent)

	// Release is called when a release has a result, again if it is repeated after a failure, and
	// by HandOver. A lease that Close lets expire raises no event.
	Release func(ctx context.Context, e ReleaseEvent)

	// Batch is called when a batch of operations, maybe a batch of one, was sent.
	Batch func(ctx context.Context, e BatchEvent)

	// Result is called with the results of what is built on locks, which Kind lists. Packages
	// leader, schedule and once raise them by pglock.Client.Report, and so can a program for its
	// own layers.
	Result func(ctx context.Context, e ResultEvent)
}

// WaitEvent describes the lock that a call begins to wait for, and the blocking grant as far as the
// client knows it.
type WaitEvent struct {
	Name      string
	Holder    string        // of the lock; empty if unknown or released
	Token     fencing.Token // of the holder's grant; 0 if unknown
	Remaining time.Duration // until that grant expires unless renewed; 0 if unknown
	Ahead     int           // waiters ahead in this process, plus other processes known to wait
	Together  int           // the number of names of the call, which raises an event for each; 0 for one name
}

// AcquireEvent is the result of an Acquire or TryAcquire.
type AcquireEvent struct {
	Name     string
	Together int  // the number of names of the call, which raises an event for each; 0 for one name
	Try      bool // the call did not wait, as TryAcquire or with WithWait(0)
	Outcome  Outcome
	Err      error         // nil if Outcome is OutcomeGranted
	Token    fencing.Token // 0 unless granted
	Holder   string        // of this call, as set by WithHolder

	Began    time.Time     // when the call began
	Waited   time.Duration // from then to the result
	Attempts int           // attempts against the server

	Queued    bool          // Hooks.Wait was called for this call
	Ahead     int           // waiters ahead when the call began to wait, or was refused
	HandedOff bool          // a release of this process granted the lock
	Blocker   fencing.Token // the last blocking grant; 0 if none is known
	Adopted   bool          // Adopt returned the lease, of a grant to another process
}

// HandoffEvent is a release that granted the lock to a waiter in the process.
type HandoffEvent struct {
	Name     string
	Released fencing.Token // the grant that ended
	Token    fencing.Token // the new grant
	Holder   string        // of the new grant
}

// RenewalEvent is the result of one renewal of one lease.
type RenewalEvent struct {
	Name         string
	Token        fencing.Token
	TTLRemaining float64       // the part of the TTL that was left when the answer arrived, by default about 2/3
	Duration     time.Duration // of the statement and the wait for its connection
	Err          error
}

// LossEvent is the loss of one name of a lease.
type LossEvent struct {
	Name   string
	Token  fencing.Token
	Holder string
	Reason LossReason
	Held   time.Duration // from the grant to the loss
	Err    error         // a *pglock.LostError, with the reason as text and the last failure of a renewal
}

// LossReason is how a lease was lost.
type LossReason string

// These are the values of LossEvent.Reason.
const (
	LossExpired LossReason = "expired"  // its deadline passed without a renewal
	LossMaxHold LossReason = "max_hold" // its deadline passed because WithMaxHold had stopped renewals
	LossRevoked LossReason = "revoked"  // by pglock.Client.Revoke
	LossEnded   LossReason = "ended"    // the server has ended the grant, or another holder has the lock
)

// ReleaseEvent is the result of a release.
type ReleaseEvent struct {
	Name       string
	Token      fencing.Token
	Holder     string
	Held       time.Duration // from the grant to the release
	Duration   time.Duration // from then to the result
	HandedOff  bool          // the lock was granted to the next waiter of this process
	Again      bool          // an earlier release of this lease failed
	Err        error         // wraps pglock.ErrLost if the grant had ended before
	HandedOver bool          // HandOver ended the lease, whose grant continues in another process
}

// BatchEvent is a batch of operations that was sent in one or two statements.
type BatchEvent struct {
	Operation Operation
	Size      int
	Duration  time.Duration // of the statements and the wait for their connection
	Err       error         // of the whole batch
}

// Operation is the kind of operation in a batch.
type Operation string

// These are the values of BatchEvent.Operation.
const (
	OperationAcquire Operation = "acquire"
	OperationRelease Operation = "release" // also hand-offs
	OperationRenew   Operation = "renew"
)

// ResultEvent is a result of something that is built on a lock. A function that panics raises none.
//
// An event without an Outcome announces that results of its Kind and Name may follow, so that an
// observer can start its counters at 0. That of a tick says when it is due: in Duration.
type ResultEvent struct {
	Kind     Kind
	Name     string        // of the lock, which is that of the election or the job; empty for KindListener
	Token    fencing.Token // of the lease; 0 without one
	Outcome  Outcome       // one of those of Kind, or of an Acquire if that has failed
	Duration time.Duration // of what has ended; of a tick that began, since its time
	Err      error         // nil if nothing failed
}

// Kind is what a ResultEvent is a result of. A program that raises its own uses another text.
type Kind string

// These are the kinds of results of this module, with their outcomes.
const (
	KindGuard    Kind = "guard"    // a refused write: stale by Guard or Bind of a lease, unfenced in a Do or DoTx
	KindTx       Kind = "tx"       // a DoTx: done, failed, unknown if the answer to the commit was lost
	KindTerm     Kind = "term"     // a term of package leader: began, and then ended or lost
	KindTick     Kind = "tick"     // a tick of package schedule: began, and then done, failed, or abandoned to others; missed
	KindOnce     Kind = "once"     // a once.Do: done, failed, unknown, repeated if an earlier call has the answer
	KindListener Kind = "listener" // a listening connection: began, and then ended or lost; failed to open
)

// Outcome is a result in one word, for metrics.
type Outcome string

// These are the values of AcquireEvent.Outcome, and then those that only a ResultEvent has.
const (
	OutcomeGranted     Outcome = "granted"
	OutcomeBusy        Outcome = "busy"        // the lock is held, and the call does not wait
	OutcomeTimeout     Outcome = "timeout"     // WithWait or the deadline of ctx ended the wait
	OutcomeCanceled    Outcome = "canceled"    // the caller canceled the call
	OutcomeClosed      Outcome = "closed"      // the client was closed
	OutcomeUnavailable Outcome = "unavailable" // the server did not answer
	OutcomeFailed      Outcome = "failed"      // another error

	OutcomeBegan     Outcome = "began"
	OutcomeDone      Outcome = "done"
	OutcomeEnded     Outcome = "ended"
	OutcomeLost      Outcome = "lost"
	OutcomeMissed    Outcome = "missed"
	OutcomeAbandoned Outcome = "abandoned"
	OutcomeRepeated  Outcome = "repeated"
	OutcomeUnknown   Outcome = "unknown"
	OutcomeStale     Outcome = "stale"
	OutcomeUnfenced  Outcome = "unfenced"
)
