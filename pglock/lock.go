package pglock

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/pglock/pglock-go/leasetable"
)

const (
	// MaxNames is the largest number of names that All accepts.
	MaxNames = 128

	// MaxPermits is the largest number of permits of a semaphore.
	MaxPermits = allPermits - 1

	// allPermits is the number of permits of a readers–writer lock.
	allPermits = leasetable.ReadersWriter

	anySemaphore = -1 // see KindError.Wanted
)

// Lock describes the lock to acquire: one name, some permits of a semaphore, a readers–writer lock
// as a reader or as the writer, or several names together. It is a value that holds nothing, so it
// can be copied, kept and used by any number of goroutines at once.
//
// Client's methods that return a Lock do not contact the database, so the first call reports an
// invalid name or number with ErrInvalidOption. A name is of the kind that its first grant made it,
// and a Lock of another kind is refused with a *KindError.
//
// Waiters of all kinds are served first come, first served, so one that needs less does not
// overtake an earlier one. Only the first 16 waiting processes and one more per permit have a fixed
// order: see docs/explanation/the-queue.md.
type Lock struct {
	client  *Client
	name    string               // of several names: their display name
	names   []string             // of several names, sorted; nil: one name
	permits leasetable.Permits   // of a semaphore or a readers–writer lock
	each    []leasetable.Permits // of these names; nil: each has one holder
	err     error                // of the first call with this Lock
}

// Lock returns the lock with one holder of that name, as in Client.Acquire.
func (c *Client) Lock(name string) Lock { return Lock{client: c, name: name, err: CheckName(name)} }

// Semaphore returns a lock of n permits, 1 to MaxPermits, which up to n holders have at the same
// time, or fewer with Lock.Weight. The first acquire creates the semaphore, and from then on all
// clients must use the same n, which Client.Resize changes, or fail with a *KindError.
//
// Each grant has its own token, by which Revoke and RequestRelease select one of the Grants of
// Client.Get. Lease.Bind is refused with fencing.ErrShared unless the grant has all permits, but
// Lease.Guard works.
//
// A call whose ctx carries leases of the semaphore acquires more permits. If these leases leave too
// few, it returns a *HeldError.
func (c *Client) Semaphore(name string, n int) Lock {
	l := Lock{client: c, name: name, permits: leasetable.Permits{Capacity: n, Weight: 1}, err: CheckName(name)}
	if l.err == nil && (n < 1 || n > MaxPermits) {
		l.err = invalidOption("semaphore %q: %d permits: must be from 1 to %d", name, n, MaxPermits)
	}
	return l
}

// Weight returns the lock for n of the semaphore's permits, granted together.
func (l Lock) Weight(n int) Lock {
	switch {
	case l.err != nil:
	case l.permits.Capacity == 0 || l.permits.Capacity == allPermits:
		l.err = invalidOption("lock %q: weight %d: only a semaphore's lock has a weight", l.name, n)
	case n < 1 || n > l.permits.Capacity:
		l.err = invalidOption("semaphore %q: weight %d: must be from 1 to %d, its permits", l.name, n, l.permits.Capacity)
	}
	l.permits.Weight = n
	return l
}

// Reader returns the readers–writer lock of that name for a reader. Many readers hold it at the
// same time, or one Writer, and later readers wait behind a waiting writer. A reader's Guard
// excludes only writers, and its Bind is refused with fencing.ErrShared. [Lease.TryUpgrade] makes
// it a writer.
func (c *Client) Reader(name string) Lock {
	return Lock{client: c, name: name, permits: leasetable.Permits{Capacity: allPermits, Weight: 1}, err: CheckName(name)}
}

// Writer returns the readers–writer lock of that name (see Reader) for a writer, its only holder,
// which [Lease.Downgrade] makes a reader.
func (c *Client) Writer(name string) Lock {
	return Lock{client: c, name: name, permits: leasetable.Permits{Capacity: allPermits, Weight: allPermits}, err: CheckName(name)}
}

// All returns the lock that consists of the given ones, 1 to MaxNames locks of this client, of any
// kinds with distinct names, which are granted together or not at all. Thus one acquire can respect
// a limit for each tenant and a limit in total. The order of locks does not matter.
//
// A waiting call holds nothing and has one ticket in the queue of each name, so calls with
// overlapping names can't deadlock, none of them starves, and each name is granted first come,
// first served. The cost is idle time, because a free name is not granted to later callers while
// the call at the head of its queue waits for another name, or up to 3 s longer if it died.
//
// The lease has one token, Context, Guard and Release for all names (see Lease.Names and
// Lease.Fences). If one grant is lost, so is the lease, with that name in the *LostError, while the
// other names stay held until Release or their expiry, since the work may need a moment to stop. A
// *BusyError describes the blocking grant that lasts longest. Under a ctx that carries a lease of
// some but not all of the names, an acquire returns a *HeldError.
func (c *Client) All(locks ...Lock) Lock {
	if len(locks) == 1 && locks[0].client == c {
		return locks[0]
	}
	all := Lock{client: c}
	switch {
	case len(locks) == 0:
		all.err = invalidOption("acquire all: no locks: must be at least one")
	case len(locks) > MaxNames:
		all.err = invalidOption("acquire all: %d names: too many: must be at most %d", len(locks), MaxNames)
	}
	locks = slices.SortedFunc(slices.Values(locks), func(a, b Lock) int { return strings.Compare(a.name, b.name) }) // as COLLATE "C"
	permits := false
	for i, l := range locks {
		switch {
		case all.err != nil:
		case l.client != c: // its name in this client's tables would be another lock
			all.err = invalidOption("acquire all: the lock %q is not of this client: make it with the client whose All is called", l.name)
		case l.names != nil:
			all.err = invalidOption("acquire all: %q has several names: give each of them", l.name)
		case i > 0 && locks[i-1].name == l.name:
			all.err = invalidOption("acquire all: the name %q is given twice: must be distinct", l.name)
		default:
			all.err = l.err
		}
		all.names, all.each = append(all.names, l.name), append(all.each, l.permits)
		permits = permits || l.permits.Any()
	}
	if !permits {
		all.each = nil
	}
	all.name = displayNames(all.names)
	return all
}

// displayNames returns names as one short text, for errors and events.
func displayNames(names []string) string {
	const most = 4
	if more := len(names) - most; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), more)
	}
	return strings.Join(names, ", ")
}

// Name returns the lock's name, and for several names their display name.
func (l Lock) Name() string { return l.name }

// Acquire waits until the lock is granted, as [Client.Acquire] does.
func (l Lock) Acquire(ctx context.Context, opts ...LeaseOption) (*Lease, error) {
	return l.acquire(ctx, opts, (*acquisition).wait)
}

// TryAcquire acquires the lock if it is free and no waiter is ahead, as [Client.TryAcquire] does.
func (l Lock) TryAcquire(ctx context.Context, opts ...LeaseOption) (*Lease, error) {
	return l.acquire(ctx, opts, (*acquisition).tryOnce)
}

// Do acquires the lock, runs fn, and releases the lock, as [Client.Do] does.
func (l Lock) Do(ctx context.Context, fn func(ctx context.Context, l *Lease) error, opts ...LeaseOption) error {
	return l.do(ctx, fn, opts, (*acquisition).wait)
}

// TryDo runs fn under the lock if it is free, as [Client.TryDo] does.
func (l Lock) TryDo(ctx context.Context, fn func(ctx context.Context, l *Lease) error, opts ...LeaseOption) error {
	return l.do(ctx, fn, opts, (*acquisition).tryOnce)
}

func (l Lock) acquire(ctx context.Context, opts []LeaseOption, how acquireMethod) (*Lease, error) {
	cfg, err := l.configure(opts)
	if err != nil {
		return nil, err
	}
	if _, err := l.carriedBy(ctx); err != nil {
		return nil, err
	}
	return l.acquireAs(ctx, cfg, how)
}

// configure returns the configuration of a lease of this lock, from the options of the client, of
// its name policy, and opts.
func (l Lock) configure(opts []LeaseOption) (*leaseConfig, error) {
	switch {
	case l.err != nil:
		return nil, l.err
	case l.client == nil:
		return nil, invalidOption("acquire: the Lock is its zero value: it must come from a Client")
	}
	cfg, err := l.client.cfg.leaseFor(l.allNames(), opts)
	switch {
	case err != nil || l.names == nil && !l.permits.Any():
		return cfg, err
	case cfg.supersede:
		return nil, invalidOption("%q: WithSupersede: must be a lock of one name with one holder", l.name)
	case (l.permits.Any() || l.each != nil) && cfg.minHold > 0:
		return nil, invalidOption("%q: WithMinHold: must be 0 for a lock with permits", l.name)
	}
	return cfg.forLock(l), nil
}

func (l Lock) allNames() []string {
	if l.names == nil {
		return []string{l.name}
	}
	return l.names
}

// permitsAt returns the permits that the lock needs of the name with index i.
func (l Lock) permitsAt(i int) leasetable.Permits {
	switch {
	case l.names == nil:
		return l.permits
	case l.each == nil:
		return leasetable.Permits{}
	}
	return l.each[i]
}

// KindError means that a name is another kind of lock, and wraps ErrKind.
type KindError struct {
	Name   string
	Wanted int // the number of permits that the caller meant; 0 for a lock with one holder, -1 for any semaphore
	Found  int // the number of permits that it has
}

func (e *KindError) Error() string {
	return fmt.Sprintf("%v: %q is %s, not %s", ErrKind, e.Name, describeKind(e.Found), describeKind(e.Wanted))
}

func (e *KindError) Unwrap() error { return ErrKind }

func describeKind(permits int) string {
	switch permits {
	case 0:
		return "a lock with one holder"
	case 1:
		return "a semaphore with 1 permit"
	case allPermits:
		return "a readers-writer lock"
	case anySemaphore:
		return "a semaphore"
	}
	return fmt.Sprintf("a semaphore with %d permits", permits)
}
