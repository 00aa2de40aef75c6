package pglock

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"strings"
	"time"

	"github.com/pglock/pglock-go/fencing"
	"github.com/pglock/pglock-go/internal/errs"
	"github.com/pglock/pglock-go/leasetable"
)

// LockInfo describes a lock that is held or was held.
type LockInfo struct {
	Name       string
	Token      fencing.Token // of the last grant
	Version    int64         // grows by one with every change of the row
	Holder     string        // empty if released
	Labels     map[string]string
	AcquiredAt time.Time     // of the last grant, by the server's clock
	HeldFor    time.Duration // since AcquiredAt; 0 if not held

	// Remaining is how long the grant lasts unless renewed, or, if Holder is empty, how long
	// WithMinHold keeps the released lock from others. It is 0 if the lock is free.
	Remaining        time.Duration
	ReleaseRequested bool // by Client.RequestRelease
	ReleaseReason    string

	Previous PreviousGrant
	Waiters  []WaiterInfo // in the order of the queue, one for each client that waits

	// Kind decides whether the lock can have several Grants at the same time. The fields from
	// Holder to ReleaseReason then describe only a grant of the whole lock (all permits, or a
	// writer's), and are zero without one.
	Kind    Kind
	Permits int         // the number of permits of a semaphore; 0 otherwise
	Grants  []GrantInfo // of a semaphore or a readers-writer lock: the live grants, in the order of tokens

	age time.Duration // since AcquiredAt
}

// Kind is that of a lock with one holder, a semaphore or readers–writer lock.
type Kind string

// These are the values of LockInfo.Kind.
const (
	KindLock      Kind = "lock" // with one holder
	KindSemaphore Kind = "semaphore"
	KindRWLock    Kind = "rwlock"
)

// GrantInfo describes a live grant of a semaphore or a readers-writer lock.
type GrantInfo struct {
	Token            fencing.Token
	Holder           string
	Labels           map[string]string
	Permits          int           // of a semaphore: the number that the grant has; 0 for a readers-writer lock
	Exclusive        bool          // reports that it has the whole lock, as a writer or with all permits
	AcquiredAt       time.Time     // by the server's clock
	HeldFor          time.Duration // since AcquiredAt
	Remaining        time.Duration // until it expires unless renewed
	ReleaseRequested bool          // the holder is asked to release the grant
	ReleaseReason    string
}

// Held reports whether the lock was held when its row was read.
func (k LockInfo) Held() bool { return k.Holder != "" && k.Remaining > 0 || len(k.Grants) > 0 }

// InUse returns the number of held permits of a semaphore, which can exceed Permits after Resize.
func (k LockInfo) InUse() (n int) {
	for _, g := range k.Grants {
		n += g.Permits
	}
	return n
}

// PreviousGrant describes the last grant of a lock that has ended, if any.
type PreviousGrant struct {
	Holder  string
	EndedAt time.Time // by the server's clock
	End     string    // "released" by its holder, "expired" or "revoked"; empty if no grant has ended
	Reason  string    // of a revocation
}

// WaiterInfo describes a client that waits for a lock. Callers of one client count as one waiter,
// and the fields describe the first of them.
type WaiterInfo struct {
	Holder string        // the holder's name of its lease, once granted
	Ticket int64         // its position in the queue, where smaller tickets are first
	Waited time.Duration // so far, by the server's clock
}

// Get returns information about the lock of that name, which may have changed since. The error
// wraps ErrNotFound if the lock is free because the name was never granted or its row has been
// pruned.
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

// newLockInfo returns the state in a row.
func newLockInfo(row leasetable.Row) LockInfo {
	k := LockInfo{
		Name: row.Name, Token: row.Token, Version: row.Version, Holder: row.Holder,
		AcquiredAt: row.AcquiredAt, Remaining: row.Remaining, age: row.Age,
		Previous: PreviousGrant{Holder: row.LastHolder, End: row.LastEnd, Reason: row.Reason},
	}
	if k.Held() {
		k.HeldFor = max(row.Age, 0)
	}
	if row.Request != nil {
		k.ReleaseRequested, k.ReleaseReason = true, *row.Request
	}
	if row.EndedAt != nil {
		k.Previous.EndedAt = *row.EndedAt
	}
	for _, w := range row.Waiters {
		k.Waiters = append(k.Waiters, WaiterInfo(w))
	}
	k.Labels = parseLabels(row.Labels)
	k.addGrants(row)
	return k
}

// addGrants adds the state of the permits in a row.
func (k *LockInfo) addGrants(row leasetable.Row) {
	switch row.Capacity {
	case 0:
		k.Kind = KindLock
		return
	case allPermits:
		k.Kind = KindRWLock
	default:
		k.Kind, k.Permits = KindSemaphore, row.Capacity
	}
	if k.Held() {
		k.Grants = []GrantInfo{{
			Token: k.Token, Holder: k.Holder, Labels: k.Labels, Permits: k.Permits, Exclusive: true,
			AcquiredAt: k.AcquiredAt, HeldFor: k.HeldFor, Remaining: k.Remaining,
			ReleaseRequested: k.ReleaseRequested, ReleaseReason: k.ReleaseReason,
		}}
	}
	for _, s := range row.Shared {
		g := GrantInfo{
			Token: s.Token, Holder: s.Holder, Labels: parseLabels(s.Labels), Permits: s.Weight,
			AcquiredAt: s.AcquiredAt, HeldFor: max(s.Age, 0), Remaining: s.Remaining,
		}
		if k.Kind == KindRWLock {
			g.Permits = 0
		}
		if s.Request != nil {
			g.ReleaseRequested, g.ReleaseReason = true, *s.Request
		}
		k.Grants = append(k.Grants, g)
	}
}

func parseLabels(text string) (labels map[string]string) {
	if json.Unmarshal([]byte(text), &labels) != nil {
		return foreignLabels(text)
	}
	return labels
}

// foreignLabels returns labels that another program than a client has written. A value that is not
// a string is returned as JSON.
func foreignLabels(text string) map[string]string {
	var values map[string]json.RawMessage
	_ = json.Unmarshal([]byte(text), &values) // without labels if it is no object
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

// LockFilter selects by all of its set fields, so its zero value selects all.
type LockFilter struct {
	Held    bool              // held locks only
	Prefix  string            // of the name
	Pattern string            // of the whole name, where * is any text and ? any character
	Holder  string            // of the last grant, unless released
	Labels  map[string]string // of the last grant, which may have more
}

// likePattern turns a Pattern into one of LIKE.
var likePattern = strings.NewReplacer(`\`, `\\`, `%`, `\%`, `_`, `\_`, `*`, `%`, `?`, `_`)

// check returns the filter for the server.
func (f LockFilter) check() (leasetable.Filter, error) {
	for what, text := range map[string]string{"prefix": f.Prefix, "pattern": f.Pattern, "holder": f.Holder} {
		if !storable(text) {
			return leasetable.Filter{}, invalidOption("lock filter: %s %.64q: must be UTF-8 without NUL", what, text)
		}
	}
	for k, v := range f.Labels {
		if !storable(k) || !storable(v) {
			return leasetable.Filter{}, invalidOption("lock filter: label %.64q: key and value must be UTF-8 without NUL", k)
		}
	}
	labels := []byte("{}")
	if len(f.Labels) > 0 {
		var err error
		if labels, err = json.Marshal(f.Labels); err != nil {
			return leasetable.Filter{}, invalidOption("lock filter: labels: %v", err)
		}
	}
	return leasetable.Filter{
		Held: f.Held, Prefix: f.Prefix, Pattern: likePattern.Replace(f.Pattern), Holder: f.Holder, Labels: string(labels),
	}, nil
}

// Locks returns the locks that match filter, in the order of their names by the database's
// collation. A name without a row, new or pruned, has none.
//
// The locks are read in steps of some hundred rows, one statement each. In between, the client
// holds no connection and no snapshot, however long the caller's loop takes, and its memory does
// not grow with the number of locks. Locks of different steps may never have been in these states
// at the same time. An error ends the iteration, which ctx bounds as a whole.
func (c *Client) Locks(ctx context.Context, filter LockFilter) iter.Seq2[LockInfo, error] {
	return func(yield func(LockInfo, error) bool) {
		f, err := filter.check()
		if err != nil {
			yield(LockInfo{}, err)
			return
		}
		for page := (leasetable.Page{}); !page.Done; {
			if page, err = c.listStep(ctx, page.Last, f); err != nil {
				yield(LockInfo{}, err)
				return
			}
			for _, row := range page.Rows {
				if !yield(newLockInfo(row), nil) {
					return
				}
			}
		}
	}
}

// listStep reads the next locks after a name.
func (c *Client) listStep(ctx context.Context, after string, f leasetable.Filter) (leasetable.Page, error) {
	if err := c.beginCall(); err != nil {
		return leasetable.Page{}, err
	}
	defer c.endCall()
	page, err := c.store.List(ctx, after, f)
	switch {
	case err != nil && ctx.Err() != nil && !errors.Is(err, ErrClosed):
		return page, errs.Errorf("pglock: list locks: %w", endOf(ctx))
	case err != nil:
		return page, c.store.Explain("list locks", err)
	}
	return page, nil
}
