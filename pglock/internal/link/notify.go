package link

import (
	"context"
	"slices"
	"sync/atomic"
	"time"

	"github.com/pglock/pglock-go/internal/pgtx"
	"github.com/pglock/pglock-go/internal/timing"
	"github.com/pglock/pglock-go/leasetable"
)

// notifications says whether statements notify waiters. A notification is a hint: if the server
// refuses it, for lack of a right or because its queue is full, the statement is repeated without
// it.
type notifications struct{ refusedAt atomic.Pointer[time.Time] }

// allowed reports whether the server is likely to accept a notification.
func (n *notifications) allowed() bool {
	at := n.refusedAt.Load()
	return at == nil || time.Since(*at) >= timing.NotifyBackoff
}

// attempt sends a statement, and again without its notification if the server refuses that.
func (l *Link) attempt(ctx context.Context, st leasetable.Statement) (sent time.Time, err error) {
	switch {
	case !st.Wakes:
		return l.roundTrip(ctx, st)
	case !l.notify.allowed():
		return l.roundTrip(ctx, quietly(st))
	}
	sent, err = l.roundTrip(ctx, st)
	if !MayBeNotification(err) {
		return sent, err
	}
	// Nothing was done. Either the notification or the statement is at fault: try without it.
	sent, again := l.roundTrip(ctx, quietly(st))
	if again != nil {
		return sent, again
	}
	now := time.Now()
	l.notify.refusedAt.Store(&now)
	l.trimQueue(ctx, err)
	l.logger.Warn("pglock: the server refuses notifications; waiters poll", "error", err)
	return sent, nil
}

// quietly returns a statement without its notification.
func quietly(st leasetable.Statement) leasetable.Statement {
	st.Args = append(slices.Clone(st.Args[:len(st.Args)-1]), false)
	return st
}

// queueUsageSQL makes the server forget the notifications that all listeners have read.
const queueUsageSQL = "SELECT pg_catalog.pg_notification_queue_usage()"

// trimQueue is called after the server has refused a notification with err. From PostgreSQL 13 on,
// a queue that was full stays full after its slow listener has gone: only a successful notification
// trims it, and there is none. The function that reports the usage trims it too. A failure is
// ignored: another client, or the next refusal, tries again.
func (l *Link) trimQueue(ctx context.Context, err error) {
	if pgtx.SQLState(err) == pgtx.ProgramLimitExceeded {
		_, _ = l.Send(ctx, leasetable.Statement{SQL: queueUsageSQL})
	}
}
