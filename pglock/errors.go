package pglock

import (
	"github.com/pglock/pglock-go/advisory"
	"github.com/pglock/pglock-go/fencing"
	"github.com/pglock/pglock-go/leasetable"
)

// The sentinels are the same values as in the packages that define them.
var (
	// ErrNotAcquired: the lock was not granted to this caller.
	ErrNotAcquired = leasetable.ErrNotAcquired
	// ErrLost: the lease ended before it was released.
	ErrLost = leasetable.ErrLost
	// ErrReleased: the lease was released by its holder.
	ErrReleased = leasetable.ErrReleased
	// ErrClosed: the client was closed.
	ErrClosed = leasetable.ErrClosed
	// ErrUnavailable: the server could not be reached, or takes no writes.
	ErrUnavailable = leasetable.ErrUnavailable
	// ErrNotFound: no lock of that name is known.
	ErrNotFound = leasetable.ErrNotFound
	// ErrInvalidName: a lock's name is 1 to 512 bytes of UTF-8 without NUL.
	ErrInvalidName = leasetable.ErrInvalidName
	// ErrInvalidOption: an option makes no sense, alone or with another one.
	ErrInvalidOption = leasetable.ErrInvalidOption
	// ErrSchema: the tables do not fit this program; one of the next three comes with it.
	ErrSchema = leasetable.ErrSchema
	// ErrSchemaMissing: there are no tables in that schema.
	ErrSchemaMissing = leasetable.ErrSchemaMissing
	// ErrSchemaOutdated: the tables were made by an earlier version.
	ErrSchemaOutdated = leasetable.ErrSchemaOutdated
	// ErrSchemaNewer: the tables were made by a later version.
	ErrSchemaNewer = leasetable.ErrSchemaNewer
	// ErrInvalidSchema: PostgreSQL would not keep that schema name as it is.
	ErrInvalidSchema = leasetable.ErrInvalidSchema
	// ErrPrivilege: the database role lacks a right on the tables.
	ErrPrivilege = leasetable.ErrPrivilege
	// ErrTimeout: the wait of DoTx is over by WithTimeout, or by the server's lock_timeout.
	ErrTimeout = advisory.ErrTimeout
	// ErrDeadlock: the server broke a cycle of transactions that wait for each other: run DoTx again.
	ErrDeadlock = advisory.ErrDeadlock
	// ErrPoolExhausted: no connection of the application's pool became free for DoTx.
	ErrPoolExhausted = advisory.ErrPoolExhausted
	// ErrCommitUnknown: the answer to the commit of DoTx was lost.
	ErrCommitUnknown = advisory.ErrCommitUnknown
	// ErrSnapshot: the transaction's snapshot is too old to tell; see fencing.Check.
	ErrSnapshot = fencing.ErrSnapshot
	// ErrStale: a guarded write came with a grant that is not current.
	ErrStale = fencing.ErrStale
	// ErrUnfenced: a protected table was written without a grant.
	ErrUnfenced = fencing.ErrUnfenced
	// ErrOtherLock: a row of a protected table belongs to another lock.
	ErrOtherLock = fencing.ErrOtherLock
)

// The error types carry the facts.
type (
	// BusyError tells who holds the lock.
	BusyError = leasetable.BusyError
	// WaitError tells why Acquire gave up.
	WaitError = leasetable.WaitError
	// LostError tells which lease was lost, and why.
	LostError = leasetable.LostError
	// NotAcquiredError tells why DoTx did not get its lock.
	NotAcquiredError = advisory.NotAcquiredError
	// SchemaError tells which version of the tables was found.
	SchemaError = leasetable.SchemaError
	// StaleError tells whose guarded write was refused.
	StaleError = fencing.StaleError
)
