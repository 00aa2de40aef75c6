package pglock

import (
	"context"
	"errors"
	"log/slog"

	"github.com/pglock/pglock-go/pglock/observe"
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

// logHooks logs the events of a client, each in one line: losses and failed renewals at Warn, and
// waits, grants and releases at Debug.
func logHooks(log *slog.Logger) observe.Hooks {
	return observe.Hooks{
		Wait: func(ctx context.Context, e observe.WaitEvent) {
			log.DebugContext(ctx, "pglock: waiting for a lock",
				"name", e.Name, "holder", e.Holder, "token", e.Token, "remaining", e.Remaining, "ahead", e.Ahead)
		},
		Acquire: func(ctx context.Context, e observe.AcquireEvent) {
			switch {
			case e.Err != nil:
				log.DebugContext(ctx, "pglock: lock not acquired",
					"name", e.Name, "outcome", e.Outcome, "waited", e.Waited, "attempts", e.Attempts, "error", e.Err)
			case e.Adopted:
				log.DebugContext(ctx, "pglock: lease adopted", "name", e.Name, "token", e.Token, "holder", e.Holder)
			default:
				log.DebugContext(ctx, "pglock: lock acquired", "name", e.Name, "token", e.Token, "holder", e.Holder,
					"waited", e.Waited, "attempts", e.Attempts, "handed_off", e.HandedOff)
			}
		},
		Release: func(ctx context.Context, e observe.ReleaseEvent) {
			l := log.With("name", e.Name, "token", e.Token, "holder", e.Holder, "held", e.Held)
			switch {
			case e.Err != nil:
				l.DebugContext(ctx, "pglock: lock not released", "error", e.Err)
			case e.HandedOver:
				l.DebugContext(ctx, "pglock: lease handed over")
			default:
				l.DebugContext(ctx, "pglock: lock released", "handed_off", e.HandedOff)
			}
		},
		Loss: func(ctx context.Context, e observe.LossEvent) {
			var lost *LostError
			errors.As(e.Err, &lost)
			l := log.With("name", e.Name, "token", e.Token, "reason", lost.Reason, "held", e.Held)
			if lost.Cause != nil {
				l = l.With("error", lost.Cause)
			}
			l.WarnContext(ctx, "pglock: lease lost")
		},
		Batch: func(ctx context.Context, e observe.BatchEvent) {
			// Only the client's end and the caller of Extend cancel a renewal, which is not tried
			// again then.
			if e.Operation == observe.OperationRenew && e.Err != nil && !errors.Is(e.Err, context.Canceled) {
				log.WarnContext(ctx, "pglock: renewal failed, trying again", "leases", e.Size, "error", e.Err)
			}
		},
	}
}
