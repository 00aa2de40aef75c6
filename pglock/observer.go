package pglock

import "github.com/pglock/pglock-go/leasetable"

// WithObserver adds an observer, which receives the client's events: see [leasetable.Observer].
// Nil adds none. Default none. Package otelpglock has an observer for OpenTelemetry.
func WithObserver(o Observer) Option { return leasetable.WithObserver(o) }

// Observer receives the events of a client, for metrics, traces and logs. It embeds NopObserver
// and defines the methods that it needs. It is a [leasetable.Observer].
type Observer = leasetable.Observer

// NopObserver is an Observer that ignores all events. Embed it in each Observer.
type NopObserver = leasetable.NopObserver

// WaitEvent is the beginning of a wait. It is a [leasetable.WaitEvent].
type WaitEvent = leasetable.WaitEvent

// AcquireEvent is the result of an Acquire or TryAcquire. It is a [leasetable.AcquireEvent].
type AcquireEvent = leasetable.AcquireEvent

// HandoffEvent is a release that has granted the lock to the next waiter of the same process. It is
// a [leasetable.HandoffEvent].
type HandoffEvent = leasetable.HandoffEvent

// RenewalEvent is the result of one renewal of one lease. It is a [leasetable.RenewalEvent].
type RenewalEvent = leasetable.RenewalEvent

// LossEvent is a lease that was lost. It is a [leasetable.LossEvent].
type LossEvent = leasetable.LossEvent

// ReleaseEvent is the result of a release. It is a [leasetable.ReleaseEvent].
type ReleaseEvent = leasetable.ReleaseEvent

// BatchEvent is a batch of operations that was sent. It is a [leasetable.BatchEvent].
type BatchEvent = leasetable.BatchEvent
