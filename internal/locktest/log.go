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

// Attr returns an attribute of a record, or the zero value if there is none of type T.
func Attr[T any](r slog.Record, key string) (v T) {
	r.Attrs(func(a slog.Attr) bool {
		if a.Key == key {
			v, _ = a.Value.Any().(T)
		}
		return true
	})
	return v
}

// Error returns the attribute "error" of a record, or nil if there is none.
func Error(r slog.Record) error { return Attr[error](r, "error") }

// WaitUntilPast returns just after the deadline. It spins at the end, so that no timer has run yet.
func WaitUntilPast(deadline time.Time) {
	<-time.After(time.Until(deadline) - 10*time.Millisecond)
	for time.Now().Before(deadline) {
		runtime.Gosched()
	}
}
