// Package quiet ends the panics of functions that a program passes only to observe: hooks and
// loggers. They may run on a goroutine of a client, where a panic would end the process, or between
// a grant and the return of its lease, where a caller that recovers would have no lease to release.
//
// Functions that do the program's work are not quiet: their panic continues after the release.
package quiet

import (
	"context"
	"log/slog"
	"runtime/debug"
)

// End ends a panic of the function that defers it, and logs it unless log is nil.
func End(log *slog.Logger) {
	if v := recover(); v != nil && log != nil {
		log.Error("pglock: an observer panicked, and its event is lost to it", "panic", v, "stack", string(debug.Stack()))
	}
}

// Logger returns a logger like l that does not panic. A line whose handler panics is lost, and with
// nil every line is.
func Logger(l *slog.Logger) *slog.Logger {
	if l == nil {
		return slog.New(slog.DiscardHandler)
	}
	return slog.New(handler{l.Handler()})
}

type handler struct{ slog.Handler }

func (h handler) Enabled(ctx context.Context, level slog.Level) bool {
	defer End(nil)
	return h.Handler.Enabled(ctx, level)
}

func (h handler) Handle(ctx context.Context, r slog.Record) error {
	defer End(nil)
	return h.Handler.Handle(ctx, r)
}

func (h handler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return handler{h.Handler.WithAttrs(attrs)}
}
func (h handler) WithGroup(name string) slog.Handler { return handler{h.Handler.WithGroup(name)} }
