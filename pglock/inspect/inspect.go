// Package inspect has what Client.Get, Client.Locks and Client.Watch of package pglock return: who
// holds a lock, who waits for it, and how its last grant ended. The client reads all of it from one
// row and its queue, so each Lock is a state that existed, and may have changed since.
package inspect

import (
	"time"

	"github.com/pglock/pglock-go/fencing"
)

// Lock describes a lock that is held or was held.
type Lock struct {
	Name       string
	Token      fencing.Token // of the last grant; of a name with permits, above those of its grants
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

	Previous Previous
	Waiters  []Waiter // in the order of the queue, one for each client that waits
	Standby  bool     // the row was read on a standby, which does not know the Waiters

	// Kind decides whether the lock can have several Grants at the same time. The fields from
	// Holder to ReleaseReason then describe only a grant of the whole lock (all permits, or a
	// writer's), and are zero without one.
	Kind    Kind
	Permits int     // the number of permits of a semaphore; 0 otherwise
	Grants  []Grant // of a semaphore or a readers–writer lock: the live grants, in the order of tokens
}

// Held reports whether the lock was held when its row was read.
func (l Lock) Held() bool { return l.Holder != "" && l.Remaining > 0 || len(l.Grants) > 0 }

// State returns one word: "held", or "shared" if its grants leave room for others; otherwise "kept"
// by WithMinHold, "expired" or "free".
func (l Lock) State() string {
	switch {
	case len(l.Grants) > 0 && !l.Grants[0].Exclusive:
		return "shared"
	case l.Held():
		return "held"
	case l.Holder != "":
		return "expired"
	case l.Remaining > 0:
		return "kept"
	}
	return "free"
}

// Live returns the live grants of a lock of any kind, in the order of their tokens.
func (l Lock) Live() []Grant {
	if len(l.Grants) > 0 || !l.Held() {
		return l.Grants
	}
	return []Grant{{
		Token: l.Token, Holder: l.Holder, Labels: l.Labels, Permits: l.Permits, Exclusive: true, AcquiredAt: l.AcquiredAt,
		HeldFor: l.HeldFor, Remaining: l.Remaining, ReleaseRequested: l.ReleaseRequested, ReleaseReason: l.ReleaseReason,
	}}
}

// Holders returns the names of those that hold the lock.
func (l Lock) Holders() (all []string) {
	for _, g := range l.Live() {
		all = append(all, g.Holder)
	}
	return all
}

// InUse returns the number of held permits of a semaphore, which can exceed Permits after Resize.
func (l Lock) InUse() (n int) {
	for _, g := range l.Grants {
		n += g.Permits
	}
	return n
}

// Kind is that of a lock with one holder, a semaphore or a readers–writer lock.
type Kind string

// These are the values of Lock.Kind, which is empty for a name without a row.
const (
	OneHolder Kind = "lock"
	Semaphore Kind = "semaphore"
	RWLock    Kind = "rwlock"
)

// Grant describes a live grant of a semaphore or a readers–writer lock.
type Grant struct {
	Token            fencing.Token
	Holder           string
	Labels           map[string]string
	Permits          int           // of a semaphore: the number that the grant has; 0 for a readers–writer lock
	Exclusive        bool          // reports that it has the whole lock, as a writer or with all permits
	AcquiredAt       time.Time     // by the server's clock
	HeldFor          time.Duration // since AcquiredAt
	Remaining        time.Duration // until it expires unless renewed
	ReleaseRequested bool          // the holder is asked to release the grant
	ReleaseReason    string
}

// Previous describes the last grant of a lock that has ended, if any.
type Previous struct {
	Holder  string    `json:"holder"`
	End     string    `json:"end"`              // "released" by its holder, "expired" or "revoked"; empty if no grant has ended
	EndedAt time.Time `json:"ended_at"`         // by the server's clock
	Reason  string    `json:"reason,omitempty"` // of a revocation
}

// Waiter describes a client that waits for a lock. Callers of one client count as one waiter, and
// the fields describe the first of them.
type Waiter struct {
	Holder    string        // the holder's name of its lease, once granted
	Ticket    int64         // its position in the queue, where smaller tickets are first; 0: it is in the overflow list
	Waited    time.Duration // so far, by the server's clock
	Permits   int           // of a semaphore: how many it waits for; 0 otherwise
	Exclusive bool          // reports that it waits for the whole lock, as a writer or for all permits
}

// Filter selects locks by all of its set fields, so its zero value selects all.
type Filter struct {
	Held    bool              // held locks only
	Waiting bool              // locks with waiters
	Prefix  string            // of the name
	Pattern string            // of the whole name, where * is any text and ? any character
	Holder  string            // of the last grant, unless released
	Labels  map[string]string // of the last grant, which may have more

	Shared    bool // semaphores and readers–writer locks only
	Elections bool // locks of elections only, with a leader or without: the last grant has a payload
}
