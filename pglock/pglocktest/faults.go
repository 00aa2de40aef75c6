package pglocktest

import (
	"context"
	"errors"
	"time"

	"github.com/pglock/pglock-go/fencing"
	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/internal/backend"
)

// Pause ends a lease as its holder would find it after a pause that was longer than the TTL: others can
// have the lock, and the holder does not know yet. Its context is not done before its next renewal, and Guard
// already fails.
func (k *Locks) Pause(l *pglock.Lease) {
	k.tb.Helper()
	for _, f := range l.Fences() {
		k.expire(f.Name, f.Token)
	}
}

// Lose ends a lease. When it returns, others can have the lock, and the lease's context is done with ErrLost
// as its cause.
func (k *Locks) Lose(l *pglock.Lease) {
	k.tb.Helper()
	k.Pause(l)
	ctx, cancel := context.WithTimeout(k.tb.Context(), patience)
	defer cancel()
	if err := backend.Inside.Renew(ctx, l); !errors.Is(l.Err(), pglock.ErrLost) {
		k.tb.Fatalf("pglocktest: lose the lease of %q: %v", l.Name(), err)
	}
}

// Expire ends all grants of a name, as if their holders had died a TTL ago: the next waiter is granted the
// lock.
func (k *Locks) Expire(name string) {
	k.tb.Helper()
	k.expire(name, 0)
}

func (k *Locks) expire(name string, token fencing.Token) {
	k.tb.Helper()
	if err := k.place.expire(k.tb.Context(), name, token); err != nil {
		k.tb.Fatalf("pglocktest: expire %q: %v", name, err)
	}
}

// Advance makes the grants and tickets of all names older, as if that time had passed on the server and no
// client had renewed anything.
func (k *Locks) Advance(d time.Duration) {
	k.tb.Helper()
	if err := k.place.advance(k.tb.Context(), d); err != nil {
		k.tb.Fatalf("pglocktest: advance: %v", err)
	}
}

// Unavailable cuts the server off, until restore is called or the test ends: calls that try once fail with
// ErrUnavailable, calls that wait do so after half a minute, and a lease ends when its deadline comes.
func (k *Locks) Unavailable() (restore func()) {
	k.tb.Helper()
	restore = func() { k.place.setDown(false) }
	k.place.setDown(true)
	k.tb.Cleanup(restore)
	return restore
}
