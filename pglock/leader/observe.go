package leader

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"time"

	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/inspect"
)

// Leader describes the leader of an election. The zero value means that there is none.
type Leader struct {
	Name    string       // the holder's name of its lease: see pglock.WithHolder
	Token   pglock.Token // of its term: it grows with every term
	Payload string
	Since   time.Time // of its term, by the server's clock
}

// Elected reports whether there was a leader when the row was read.
func (l Leader) Elected() bool { return l.Token != 0 }

// leaderOf returns the leader that a row names. A holder without a payload is another use of the
// lock.
func leaderOf(k inspect.Lock) Leader {
	payload, ok := k.Labels[payloadLabel]
	if !ok || !k.Held() {
		return Leader{}
	}
	return Leader{Name: k.Holder, Token: k.Token, Payload: payload, Since: k.AcquiredAt}
}

// Leader returns the leader. The error wraps ErrNoLeader if there is none, and
// pglock.ErrUnavailable if the server does not answer. ctx bounds the call.
func (e *Election) Leader(ctx context.Context) (Leader, error) {
	k, err := e.client.Get(ctx, e.name)
	if err != nil && !errors.Is(err, pglock.ErrNotFound) {
		return Leader{}, err
	}
	l := leaderOf(k)
	if !l.Elected() {
		return l, fmt.Errorf("%w: %q", ErrNoLeader, e.name)
	}
	return l, nil
}

// Observe returns the leader, and then the new one after each change of the leader or its payload.
// If there is no leader, it returns the zero Leader. Each one is the newest at the time of its
// read, and never older than the one before. Changes that come while the caller's loop runs are
// collected into the newest one, which is never missed. A notification brings each within
// milliseconds; all observers read the row once a second as well, so a lost one costs a second.
//
// An error ends the iteration: it wraps pglock.ErrUnavailable after an outage of 30 s,
// pglock.ErrClosed, or the error and cause of ctx.
func (e *Election) Observe(ctx context.Context) iter.Seq2[Leader, error] {
	return func(yield func(Leader, error) bool) {
		var last Leader
		first := true
		for k, err := range e.client.Watch(ctx, e.name) {
			if err != nil {
				yield(Leader{}, err)
				return
			}
			l := leaderOf(k)
			if same := l.Token == last.Token && l.Name == last.Name && l.Payload == last.Payload; same && !first {
				continue
			}
			if first, last = false, l; !yield(l, nil) {
				return
			}
		}
	}
}
