package pglock

import (
	"context"
	"log/slog"
)

// defaultHandler logs to slog.Default at Warn and above, which covers losses and failures that no
// call returns. It reads slog.Default for each record, since a program may set it after Open.
type defaultHandler struct{}

func (defaultHandler) Enabled(ctx context.Context, level slog.Level) bool {
	return level >= slog.LevelWarn && slog.Default().Enabled(ctx, level)
}

func (defaultHandler) Handle(ctx context.Context, r slog.Record) error {
	return slog.Default().Handler().Handle(ctx, r)
}

func (defaultHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return slog.Default().Handler().WithAttrs(attrs)
}

func (defaultHandler) WithGroup(name string) slog.Handler {
	return slog.Default().Handler().WithGroup(name)
}

// logObserver logs the events of a client, each in one line: losses and failed renewals at Warn,
// and waits, grants and releases at Debug.
type logObserver struct {
	NopObserver
	logger *slog.Logger
}

func (o *logObserver) debug() bool { return o.logger.Enabled(context.Background(), slog.LevelDebug) }

func (o *logObserver) ObserveWait(ctx context.Context, e WaitEvent) {
	o.logger.DebugContext(ctx, "pglock: waiting for a lock",
		"name", e.Name, "holder", e.Holder, "token", e.Token, "remaining", e.Remaining, "ahead", e.Ahead)
}

func (o *logObserver) ObserveAcquire(ctx context.Context, e AcquireEvent) {
	if e.Err != nil {
		o.logger.DebugContext(ctx, "pglock: lock not acquired",
			"name", e.Name, "outcome", e.Outcome, "waited", e.Waited, "attempts", e.Attempts, "error", e.Err)
		return
	}
	if e.Adopted {
		o.logger.DebugContext(ctx, "pglock: lease adopted", "name", e.Name, "token", e.Token, "holder", e.Holder)
		return
	}
	o.logger.DebugContext(ctx, "pglock: lock acquired", "name", e.Name, "token", e.Token, "holder", e.Holder,
		"waited", e.Waited, "attempts", e.Attempts, "handed_off", e.HandedOff)
}

func (o *logObserver) ObserveRelease(ctx context.Context, e ReleaseEvent) {
	if e.Err != nil {
		o.logger.DebugContext(ctx, "pglock: lock not released",
			"name", e.Name, "token", e.Token, "holder", e.Holder, "held", e.Held, "error", e.Err)
		return
	}
	if e.HandedOver {
		o.logger.DebugContext(ctx, "pglock: lease handed over", "name", e.Name, "token", e.Token, "holder", e.Holder, "held", e.Held)
		return
	}
	o.logger.DebugContext(ctx, "pglock: lock released",
		"name", e.Name, "token", e.Token, "holder", e.Holder, "held", e.Held, "handed_off", e.HandedOff)
}

func (o *logObserver) ObserveLoss(ctx context.Context, e LossEvent) {
	o.logger.WarnContext(ctx, "pglock: lease lost",
		"name", e.Name, "token", e.Token, "reason", e.Err.Reason, "held", e.Held, "error", e.Err.Cause)
}

func (o *logObserver) ObserveBatch(ctx context.Context, e BatchEvent) {
	if e.Operation == OperationRenew && e.Err != nil {
		o.logger.WarnContext(ctx, "pglock: renewal failed, trying again", "leases", e.Size, "error", e.Err)
	}
}
