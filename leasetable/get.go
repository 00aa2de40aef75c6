package leasetable

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/pglock/pglock-go/fencing"
	"github.com/pglock/pglock-go/internal/errs"
	"github.com/pglock/pglock-go/leasetable/internal/store"
)

// LockInfo describes a lock that is held, or was held.
type LockInfo struct {
	Name       string
	Token      fencing.Token // of the last grant
	Version    int64         // grows by one with every change of the row
	Holder     string        // empty if released
	Labels     map[string]string
	AcquiredAt time.Time     // of the last grant, by the server's clock
	HeldFor    time.Duration // since AcquiredAt; 0 if not held

	// Remaining is how long the grant lasts unless renewed. If Holder is empty, it is how long
	// WithMinHold keeps the released lock from others. It is 0 if the lock is free.
	Remaining time.Duration

	// ReleaseRequested says that the holder is asked to release the lock, and ReleaseReason why: see
	// Client.RequestRelease.
	ReleaseRequested bool
	ReleaseReason    string

	Last    LastGrant
	Waiters []WaiterInfo // in the order of the queue, one for each client that waits

	age time.Duration // since AcquiredAt
}

// Held reports whether the lock was held when its row was read.
func (k LockInfo) Held() bool { return k.Holder != "" && k.Remaining > 0 }

// LastGrant describes the last grant of a lock that is over. It is the zero value if there is none.
type LastGrant struct {
	Holder  string
	EndedAt time.Time // by the server's clock
	End     End       // empty if no grant is over
	Reason  string    // of a revocation
}

// End says how a grant has ended.
type End string

// Ends of a grant.
const (
	EndReleased End = "released" // by its holder
	EndExpired  End = "expired"  // its holder has not renewed it
	EndRevoked  End = "revoked"  // by Client.Revoke
)

// WaiterInfo describes a client that waits for a lock. All callers of the client that wait for it
// are one waiter, which the first one of them describes.
type WaiterInfo struct {
	Holder string        // the name that it would hold the lock with
	Ticket int64         // its place in the queue: smaller tickets are first
	Waited time.Duration // so far, by the server's clock
}

// Get returns information about the lock name. The lock may have changed when Get returns. Get
// returns ErrNotFound if the name was never granted or its row has been pruned; the lock is free
// then. If ctx ends first, the error wraps the error and cause of ctx. If the server does not
// answer within 5 s, it wraps ErrUnavailable.
func (c *Client) Get(ctx context.Context, name string) (LockInfo, error) {
	k := LockInfo{Name: name}
	if err := checkName(name); err != nil {
		return k, err
	}
	if err := c.beginCall(); err != nil {
		return k, err
	}
	defer c.endCall()
	row, found, err := c.store.Get(ctx, name)
	switch {
	case err != nil && ctx.Err() != nil:
		return k, errs.Errorf("pglock: get %q: %w", name, endOf(ctx))
	case err != nil:
		return k, c.store.Explain(fmt.Sprintf("get %q", name), err)
	case !found:
		return k, errs.Errorf("%w: %q", ErrNotFound, name)
	}
	return newLockInfo(row), nil
}

// newLockInfo returns what a row says.
func newLockInfo(row store.Row) LockInfo {
	k := LockInfo{
		Name: row.Name, Token: row.Token, Version: row.Version, Holder: row.Holder,
		AcquiredAt: row.AcquiredAt, Remaining: row.Remaining, age: row.Age,
		Last: LastGrant{Holder: row.LastHolder, End: End(row.LastEnd), Reason: row.Reason},
	}
	if k.Held() {
		k.HeldFor = max(row.Age, 0)
	}
	if row.Request != nil {
		k.ReleaseRequested, k.ReleaseReason = true, *row.Request
	}
	if row.EndedAt != nil {
		k.Last.EndedAt = *row.EndedAt
	}
	for _, w := range row.Waiters {
		k.Waiters = append(k.Waiters, WaiterInfo(w))
	}
	if json.Unmarshal([]byte(row.Labels), &k.Labels) != nil {
		k.Labels = foreignLabels(row.Labels)
	}
	return k
}

// foreignLabels returns labels that another program than a client has written: of values that are
// no strings, the JSON.
func foreignLabels(text string) map[string]string {
	var values map[string]json.RawMessage
	_ = json.Unmarshal([]byte(text), &values) // no labels if it is no object
	labels := make(map[string]string, len(values))
	for key, raw := range values {
		var value string
		if json.Unmarshal(raw, &value) != nil {
			value = string(raw)
		}
		labels[key] = value
	}
	return labels
}
