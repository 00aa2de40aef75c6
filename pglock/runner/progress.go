package runner

import (
	"context"
	"fmt"
	"log/slog"
	"time"
)

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

// reportWait logs at each interval who holds the lock. The function it returns stops the reports,
// and returns when none is running.
func reportWait(ctx context.Context, l lock, name string, cfg waitConfig) (stop func()) {
	if !cfg.logger.Enabled(ctx, slog.LevelInfo) {
		return func() {} // the queries for the holder would be in vain
	}
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		runReports(ctx, l, name, cfg)
	}()
	return func() {
		cancel()
		<-done
	}
}

func runReports(ctx context.Context, l lock, name string, cfg waitConfig) {
	start, timer := time.Now(), time.NewTimer(min(firstReport, cfg.interval))
	defer timer.Stop()
	for {
		// Both can be ready at once. Either may win: one report more or less does no harm.
		select {
		case <-timer.C:
		case <-ctx.Done():
			return
		}
		holder, err := l.holder(ctx)
		if err == nil && !holder.own && ctx.Err() == nil {
			waited := time.Since(start)
			cfg.logger.InfoContext(ctx, fmt.Sprintf("pglock: waiting %v for %s", waited.Round(time.Second), holder),
				"lock", name, "holder", holder.name, "held", holder.held, "waited", waited)
		}
		timer.Reset(cfg.interval)
	}
}
