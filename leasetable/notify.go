package leasetable

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/pglock/pglock-go/internal/pgtx"
	"github.com/pglock/pglock-go/internal/timing"
)

// notifications says whether statements notify waiters. A notification is a hint: if the server
// refuses it, for lack of a right or because its queue is full, the statement is repeated without
// it.
type notifications struct {
	offUntil atomic.Int64 // nanoseconds of the monotonic clock since epoch
	epoch    time.Time
}

// allowed reports whether the server is likely to accept a notification.
func (n *notifications) allowed() bool {
	return int64(time.Since(n.epoch)) >= n.offUntil.Load()
}

// refused records that the server accepts a statement only without its notification.
func (n *notifications) refused() {
	n.offUntil.Store(int64(time.Since(n.epoch) + timing.NotifyBackoff))
}

// sendWaking sends a statement that notifies a waiter if its last parameter is true. It returns the
// time just before the statement was sent, and calls the row function anew for a repeated statement.
func (s *Store) sendWaking(ctx context.Context, st statement) (sent time.Time, err error) {
	args := st.args
	notify := s.notify.allowed()
	st.args = append(args[:len(args):len(args)], notify)
	sent, err = s.sendWithin(ctx, st)
	if !notify || !MayBeNotification(err) {
		return sent, err
	}
	// Nothing was done. Either the notification or the statement is at fault: try without it.
	st.args = append(args[:len(args):len(args)], false)
	sent, again := s.sendWithin(ctx, st)
	if again != nil {
		return sent, again
	}
	s.notify.refused()
	s.trimQueue(ctx, err)
	s.logger.Warn("pglock: the server refuses notifications; waiters poll", "error", err)
	return sent, nil
}

// wake is sendWaking for a ctx of the caller.
func (s *Store) wake(ctx context.Context, st statement) error {
	ctx, cancel := s.withLife(ctx)
	defer cancel()
	_, err := s.sendWaking(ctx, st)
	return err
}

// wakeTwice sends a statement of sendWaking that is safe to repeat, at most twice.
func (s *Store) wakeTwice(ctx context.Context, st statement) error {
	return s.twice(ctx, func(ctx context.Context) error { return s.wake(ctx, st) })
}

// MayBeNotification reports whether the server refused a statement for good in a way that may
// concern its notification: a right is missing, or the notification queue is full (54000).
func MayBeNotification(err error) bool {
	state := pgtx.SQLState(err)
	return state != "" && !Transient(err) && !endsConnection(state)
}

// queueUsageSQL makes the server forget the notifications that all listeners have read.
const queueUsageSQL = "SELECT pg_catalog.pg_notification_queue_usage()"

// trimQueue is called after the server has refused a notification with err. From PostgreSQL 13 on, a
// queue that was full stays full after its slow listener has gone: only a successful notification
// trims it, and there is none. The function that reports the usage trims it too. A failure is
// ignored: another client, or the next refusal, tries again.
func (s *Store) trimQueue(ctx context.Context, err error) {
	if pgtx.SQLState(err) == pgtx.ProgramLimitExceeded {
		_, _ = s.sendWithin(ctx, statement{sql: queueUsageSQL})
	}
}
