package otelpglock

import (
	"errors"

	"go.opentelemetry.io/otel/metric"
)

type instruments struct {
	acquireDuration, leaseDuration, renewalDuration, releaseDuration, batchDuration metric.Float64Histogram

	renewalRemaining, resultDuration, tickLateness metric.Float64Histogram
	tickNext, tickLastSuccess                      metric.Float64Gauge
	acquireAhead, batchSize                        metric.Int64Histogram

	acquireAttempts, handoffs, leaseLosses, results           metric.Int64Counter
	acquireWaiting, leaseActive, leaderActive, listenerActive metric.Int64UpDownCounter
}

// The boundaries of the histograms, in seconds for those of durations.
var (
	statementBounds = []float64{0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5}
	acquireBounds   = append(statementBounds[:len(statementBounds):len(statementBounds)], 10, 30, 60, 300)
	resultBounds    = append(acquireBounds[:len(acquireBounds):len(acquireBounds)], 1800, 21600, 86400)
	leaseBounds     = []float64{0.001, 0.01, 0.1, 1, 10, 60, 600, 3600, 21600, 86400}
	shareBounds     = []float64{0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9}
	countBounds     = []float64{0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024}
)

func newInstruments(m metric.Meter) (*instruments, error) {
	var failed []error
	floats := func(name, unit, what string, bounds []float64) metric.Float64Histogram {
		h, err := m.Float64Histogram(name, metric.WithUnit(unit), metric.WithDescription(what), metric.WithExplicitBucketBoundaries(bounds...))
		failed = append(failed, err)
		return h
	}
	seconds := func(name, what string, bounds []float64) metric.Float64Histogram {
		return floats(name, "s", what, bounds)
	}
	counts := func(name, unit, what string) metric.Int64Histogram {
		h, err := m.Int64Histogram(name, metric.WithUnit(unit), metric.WithDescription(what), metric.WithExplicitBucketBoundaries(countBounds...))
		failed = append(failed, err)
		return h
	}
	counter := func(name, unit, what string) metric.Int64Counter {
		c, err := m.Int64Counter(name, metric.WithUnit(unit), metric.WithDescription(what))
		failed = append(failed, err)
		return c
	}
	active := func(name, unit, what string) metric.Int64UpDownCounter {
		c, err := m.Int64UpDownCounter(name, metric.WithUnit(unit), metric.WithDescription(what))
		failed = append(failed, err)
		return c
	}
	timestamp := func(name, what string) metric.Float64Gauge {
		g, err := m.Float64Gauge(name, metric.WithUnit("s"), metric.WithDescription(what))
		failed = append(failed, err)
		return g
	}
	all := &instruments{
		acquireDuration:  seconds("pglock.acquire.duration", "Duration of acquiring a lock, with the wait", acquireBounds),
		acquireAttempts:  counter("pglock.acquire.attempts", "{attempt}", "Attempts against the server to acquire locks"),
		acquireWaiting:   active("pglock.acquire.waiting", "{call}", "Calls that wait for a lock"),
		acquireAhead:     counts("pglock.acquire.ahead", "{waiter}", "Waiters ahead of a call that begins to wait"),
		handoffs:         counter("pglock.handoffs", "{handoff}", "Releases that granted the lock to the next waiter of the process"),
		leaseActive:      active("pglock.lease.active", "{lease}", "Leases that are held"),
		leaseDuration:    seconds("pglock.lease.duration", "Time from the grant of a lease to its end", leaseBounds),
		leaseLosses:      counter("pglock.lease.losses", "{lease}", "Leases that were lost"),
		renewalDuration:  seconds("pglock.renewal.duration", "Duration of renewing a lease", statementBounds),
		renewalRemaining: floats("pglock.renewal.remaining", "1", "Part of the TTL that remained when a lease was renewed", shareBounds),
		releaseDuration:  seconds("pglock.release.duration", "Duration of releasing a lock", statementBounds),
		batchSize:        counts("pglock.batch.size", "{operation}", "Operations that were sent together"),
		batchDuration:    seconds("pglock.batch.duration", "Duration of the statements of a batch", statementBounds),
		results:          counter("pglock.results", "{result}", "Results of what is built on locks"),
		resultDuration:   seconds("pglock.result.duration", "Duration of what is built on locks", resultBounds),
		leaderActive:     active("pglock.leader.active", "{term}", "Terms of elections that this process leads"),
		listenerActive:   active("pglock.listener.active", "{connection}", "Listening connections of the clients"),
		tickLateness:     seconds("pglock.tick.lateness", "Time from a tick to the begin of its run", acquireBounds),
		tickNext:         timestamp("pglock.tick.next", "Time of the next tick of a job, in seconds since 1970"),
		tickLastSuccess:  timestamp("pglock.tick.last_success", "Time at which a job was last done, in seconds since 1970"),
	}
	return all, errors.Join(failed...)
}
