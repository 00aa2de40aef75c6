package locktest

import (
	"context"
	"log/slog"
	"runtime"
	"time"
)

// Records is a slog.Handler that sends each record to the channel.
type Records chan<- slog.Record

// Enabled implements slog.Handler.
func (Records) Enabled(context.Context, slog.Level) bool { return true }

// Handle implements slog.Handler.
func (r Records) Handle(_ context.Context, record slog.Record) error {
	r <- record
	return nil
}

// WithAttrs implements slog.Handler. It drops the attributes.
func (r Records) WithAttrs([]slog.Attr) slog.Handler { return r }

// WithGroup implements slog.Handler. It drops the group.
func (r Records) WithGroup(string) slog.Handler { return r }

// WaitUntilPast returns just after the deadline. It spins at the end, so that no timer has run yet.
func WaitUntilPast(deadline time.Time) {
	<-time.After(time.Until(deadline) - 10*time.Millisecond)
	for time.Now().Before(deadline) {
		runtime.Gosched()
	}
}
