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

// The events of an Observer. They are those of package leasetable.
type (
	WaitEvent    = leasetable.WaitEvent    // an Acquire begins to wait
	AcquireEvent = leasetable.AcquireEvent // an Acquire or TryAcquire has ended
	HandoffEvent = leasetable.HandoffEvent // a release has granted the lock to the next waiter
	RenewalEvent = leasetable.RenewalEvent // a lease was renewed, or not
	LossEvent    = leasetable.LossEvent    // a lease was lost
	ReleaseEvent = leasetable.ReleaseEvent // a lease was released, or not
	BatchEvent   = leasetable.BatchEvent   // a batch of operations was sent
)
