package migrations

import (
	"context"
	"fmt"
	"time"
)

// Progress is what a waiter is told while somebody else holds the lock.
type Progress struct {
	Lock   string        // its name
	Holder string        // as it calls itself
	Held   time.Duration // for how long it has held the lock; 0 if that can't be seen
	Waited time.Duration // by this caller
}

// String is for a log: waiting for replica-3:812 (server process 4711), holding for 12s.
func (p Progress) String() string {
	return fmt.Sprintf("waiting %v for %s", p.Waited.Round(time.Second), holding{name: p.Holder, held: p.Held})
}

// String names the holder, and for how long it has been one where that is known.
func (h holding) String() string {
	switch {
	case h.name == "":
		return "an unknown holder"
	case h.held == 0:
		return h.name
	}
	return fmt.Sprintf("%s, holding for %v", h.name, h.held.Round(time.Second))
}

const (
	defaultEvery = 5 * time.Second
	firstReport  = time.Second     // a wait that is shorter is nobody's concern
	lookBound    = 5 * time.Second // of the question who holds the lock
)

// reporter tells somebody, again and again, who is waited for.
type reporter struct {
	lock  lock
	cfg   waitConfig
	name  string
	begun time.Time
}

// start begins to report and returns what stops it: a function that waits until no report
// is under way, and may be called once.
func (r *reporter) start(ctx context.Context) (stop func()) {
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
	timer := time.NewTimer(min(firstReport, r.cfg.every))
	defer timer.Stop()
	for {
		// If both are ready one report more or less is no matter.
		select {
		case <-timer.C:
		case <-ctx.Done():
			return
		}
		who, err := r.lock.holder(ctx)
		if err == nil && !who.own && ctx.Err() == nil {
			r.cfg.report(Progress{Lock: r.name, Holder: who.name, Held: who.held, Waited: time.Since(r.begun)})
		}
		timer.Reset(r.cfg.every)
	}
}
