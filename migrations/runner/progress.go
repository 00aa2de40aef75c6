package runner

import (
	"context"
	"fmt"
	"time"
)

// Progress describes a wait while another runner holds the lock.
type Progress struct {
	Lock   string        // its name
	Holder string        // the name that the holder gives itself
	Held   time.Duration // how long the holder has had the lock; 0 if that is not known
	Waited time.Duration // how long this caller has waited
}

// String returns a line for a log: waiting 2s for replica-3:812 (server process 4711), which has
// held the lock for 12s.
func (p Progress) String() string {
	return fmt.Sprintf("waiting %v for %s", p.Waited.Round(time.Second), holderInfo{name: p.Holder, held: p.Held})
}

// String names the holder, and says how long it has had the lock if that is known.
func (h holderInfo) String() string {
	switch {
	case h.name == "":
		return "an unknown holder"
	case h.held == 0:
		return h.name
	}
	return fmt.Sprintf("%s, which has held the lock for %v", h.name, h.held.Round(time.Second))
}

const (
	defaultInterval = 5 * time.Second // between two reports
	firstReport     = time.Second     // a shorter wait is not reported
	holderTimeout   = 5 * time.Second // bounds the query for the holder
)

// reporter reports at each interval who holds the lock.
type reporter struct {
	lock  lock
	cfg   waitConfig
	name  string
	start time.Time
}

// run starts the reports. The function it returns stops them, and returns when no report is
// running. It may be called once.
func (r *reporter) run(ctx context.Context) (stop func()) {
	if r.cfg.report == nil {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		r.runReports(ctx)
	}()
	return func() {
		cancel()
		<-done
	}
}

func (r *reporter) runReports(ctx context.Context) {
	timer := time.NewTimer(min(firstReport, r.cfg.interval))
	defer timer.Stop()
	for {
		// Both can be ready at once. Either may win: one report more or less does no harm.
		select {
		case <-timer.C:
		case <-ctx.Done():
			return
		}
		holder, err := r.lock.holder(ctx)
		if err == nil && !holder.own && ctx.Err() == nil {
			r.cfg.report(Progress{Lock: r.name, Holder: holder.name, Held: holder.held, Waited: time.Since(r.start)})
		}
		timer.Reset(r.cfg.interval)
	}
}
