package pglock

import (
	"github.com/pglock/pglock-go/advisory"
	"github.com/pglock/pglock-go/fencing"
	"github.com/pglock/pglock-go/leasetable"
)

// Sentinel errors, for errors.Is. They are the same values as in the packages that define them.
var (
	// ErrNotAcquired: the lock was not granted to this caller. TryAcquire returns it in a
	// *BusyError, Acquire in a *WaitError, DoTx in a *NotAcquiredError.
	ErrNotAcquired = leasetable.ErrNotAcquired
	// ErrHeldByCaller: ctx already carries a lease of that lock, so that waiting would never end. It
	// comes in a *HeldError. See WithJoin.
	ErrHeldByCaller = leasetable.ErrHeldByCaller
	// ErrLost: the lease ended before it was released. It is the cause of the lease's Context, in a
	// *LostError.
	ErrLost = leasetable.ErrLost
	// ErrMaxHold: WithMaxHold ended a lease, or refuses to extend it.
	ErrMaxHold = leasetable.ErrMaxHold
	// ErrReleased: the lease was released by its holder.
	ErrReleased = leasetable.ErrReleased
	// ErrRevoked: Revoke ended a lease. It comes with ErrLost, in a *LostError.
	ErrRevoked = leasetable.ErrRevoked
	// ErrGuarded: Revoke has ended a grant, but a guarded transaction that began before can still
	// commit.
	ErrGuarded = leasetable.ErrGuarded
	// ErrClosed: the client was closed.
	ErrClosed = leasetable.ErrClosed
	// ErrUnavailable: the server is unreachable, does not answer, or is read-only.
	ErrUnavailable = leasetable.ErrUnavailable
	// ErrLogin: the server has rejected the login: unknown role, wrong password, unknown database,
	// missing right CONNECT, or pg_hba.conf. No call waits for that to pass.
	ErrLogin = leasetable.ErrLogin
	// ErrKind: the name is used as another kind of lock. It comes in a *KindError.
	ErrKind = leasetable.ErrKind
	// ErrUndefined: the name has no definition. It comes in an *UndefinedError. See WithUndefined.
	ErrUndefined = leasetable.ErrUndefined
	// ErrNoWaiter: Transfer found no waiter of that name, or it did not take the lock over.
	ErrNoWaiter = leasetable.ErrNoWaiter
	// ErrNotFound: the table has no row for that name.
	ErrNotFound = leasetable.ErrNotFound
	// ErrInvalidName: a lock's name must be 1 to 512 bytes of UTF-8 without NUL.
	ErrInvalidName = leasetable.ErrInvalidName
	// ErrInvalidOption: an option is out of its range or conflicts with another option. The text
	// names the rule.
	ErrInvalidOption = leasetable.ErrInvalidOption
	// ErrSchema: the tables do not fit this program. It comes in a *SchemaError, with one of the
	// next three.
	ErrSchema = leasetable.ErrSchema
	// ErrSchemaMissing: the schema has no lock tables.
	ErrSchemaMissing = leasetable.ErrSchemaMissing
	// ErrSchemaOutdated: an earlier version of this module created the tables.
	ErrSchemaOutdated = leasetable.ErrSchemaOutdated
	// ErrSchemaNewer: a later version of this module created the tables.
	ErrSchemaNewer = leasetable.ErrSchemaNewer
	// ErrInvalidSchema: PostgreSQL would truncate or refuse that schema name.
	ErrInvalidSchema = leasetable.ErrInvalidSchema
	// ErrPrivilege: the database role lacks a right on the tables.
	ErrPrivilege = leasetable.ErrPrivilege
	// ErrTimeout: the lock was not granted within the time of WithWait, or for DoTx within that of
	// advisory.WithTimeout or the server's lock_timeout.
	ErrTimeout = leasetable.ErrTimeout
	// ErrDeadlock: the server ended a deadlock by refusing the lock of this DoTx. Run it again.
	ErrDeadlock = advisory.ErrDeadlock
	// ErrPoolExhausted: no connection of the application's pool became free for DoTx, or none of
	// its *sql.DB for OpenDB.
	ErrPoolExhausted = advisory.ErrPoolExhausted
	// ErrDriver: the *sql.DB of OpenDB does not run on pgx's stdlib driver.
	ErrDriver = leasetable.ErrDriver
	// ErrCommitUnknown: the reply to the commit of DoTx was lost. The commit may have succeeded.
	ErrCommitUnknown = advisory.ErrCommitUnknown
	// ErrStale: the grant of a guarded write is not the current one. It comes in a *StaleError.
	ErrStale = fencing.ErrStale
	// ErrSnapshot: the transaction's snapshot is too old for Guard. Call Guard first in the
	// transaction, or use READ COMMITTED.
	ErrSnapshot = fencing.ErrSnapshot
	// ErrUnfenced: a protected table was written without a grant.
	ErrUnfenced = fencing.ErrUnfenced
	// ErrOtherLock: a row of a protected table belongs to another lock.
	ErrOtherLock = fencing.ErrOtherLock
)

// BusyError is the error of TryAcquire if the lock is held. It matches ErrNotAcquired. It is a
// [leasetable.BusyError], with these fields:
//
//	Name      string        // of the lock
//	Holder    string        // empty if no lease is held and a transaction still uses the row
//	Token     Token         // of the holder's grant
//	Remaining time.Duration // until the holder's lease expires unless it is renewed. Without a
//	                        // holder: until the end of WithMinHold
//
//	ThisClient bool // the holder is another call of the same client
type BusyError = leasetable.BusyError

// WaitError is the error of Acquire if the lock was not granted. It matches ErrNotAcquired, Cause
// and Last. It is a [leasetable.WaitError], with these fields:
//
//	Name   string // for several names, a text for people
//	Waited time.Duration
//	Cause  error // what ended the wait: ErrTimeout, ctx's error and cause, ErrClosed or ErrUnavailable
//	Last   error // the last reply: a *BusyError, a server's error, or nil
type WaitError = leasetable.WaitError

// HeldError is the error of Acquire, TryAcquire, Do and TryDo if ctx carries a held lease of the same
// lock. It matches ErrHeldByCaller, and not ErrNotAcquired: the mistake is in the program. It is a
// [leasetable.HeldError], with these fields:
//
//	Name   string
//	Token  Token  // of the grant that ctx carries
//	Holder string // of that grant
type HeldError = leasetable.HeldError

// LostError is the error of a lease that was lost. It matches ErrLost and Cause. It is a
// [leasetable.LostError], with these fields:
//
//	Name   string
//	Token  Token
//	Reason string // for people
//	Cause  error  // of the last renewal, ErrMaxHold, ErrRevoked, or nil
type LostError = leasetable.LostError

// NotAcquiredError is the error of DoTx if the lock was not granted. It matches ErrNotAcquired and
// Cause. It is an [advisory.NotAcquiredError], with these fields:
//
//	Keys   []advisory.Key
//	Waited time.Duration
//	Cause  error    // ErrTimeout, ErrDeadlock, ErrPoolExhausted, or ctx's error and cause
//	Names  []string // of the locks, as far as is known
type NotAcquiredError = advisory.NotAcquiredError

// SchemaError is the error of Open if the tables do not fit this program. It matches ErrSchema and
// Kind. It is a [leasetable.SchemaError], with these fields:
//
//	Kind  error  // ErrSchemaMissing, ErrSchemaOutdated or ErrSchemaNewer
//	Name  string // of the schema
//	Found int    // the version in the database, 0 if missing
//	Want  int    // the version that this program needs
//	Cause error  // the server's error, or nil
type SchemaError = leasetable.SchemaError

// StaleError is the error of Guard and Bind if the grant is not the current one. It matches
// ErrStale. It is a [fencing.StaleError], with these fields:
//
//	Resource string // the lock's name
//	Token    Token  // of the refused grant
//	Current  Token  // the newest known, 0 if there is none
type StaleError = fencing.StaleError

// KindError is the error of an acquire whose name is used as another kind of lock: a lock with one
// holder, a readers-writer lock, or a semaphore with another number of permits. It matches ErrKind.
// It is a [leasetable.KindError], with these fields:
//
//	Name   string
//	Wanted int // the number of permits that the caller meant, 0 for a lock with one holder
//	Found  int // the number that the name has
type KindError = leasetable.KindError
