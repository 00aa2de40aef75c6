// Package backend says what a client needs of the tables, so that package pglocktest can keep locks in
// memory.
package backend

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglock/pglock-go/advisory"
	"github.com/pglock/pglock-go/fencing"
	"github.com/pglock/pglock-go/leasetable"
	"github.com/pglock/pglock-go/pglock/inspect"
	"github.com/pglock/pglock-go/pglock/internal/records"
)

// Table is leasetable.Table and link.Link, where the methods are documented.
type Table interface {
	leasetable.Sender

	AcquireFast(ctx context.Context, batch []*leasetable.Request) ([]leasetable.Grant, error)
	AcquireFull(ctx context.Context, batch []*leasetable.Request) ([]leasetable.Grant, error)
	AcquireSlots(ctx context.Context, r *leasetable.Request) (leasetable.Grant, error)
	HandOff(ctx context.Context, fence fencing.Fence, r *leasetable.Request, client string) (leasetable.Grant, error)
	Adopt(ctx context.Context, fence fencing.Fence, holder string, ttl time.Duration) (leasetable.Renewal, error)
	Upgrade(ctx context.Context, reader fencing.Token, r *leasetable.Request) (leasetable.Grant, error)
	KeepPermits(ctx context.Context, fence fencing.Fence, n int) (done bool, err error)
	Resize(ctx context.Context, name string, capacity int) (before int, err error)

	Renew(ctx context.Context, all []leasetable.Extension) (map[fencing.Fence]leasetable.Renewal, error)
	RenewReserved(ctx context.Context, all []leasetable.Extension, patience time.Duration, overdue func(sent time.Time)) (map[fencing.Fence]leasetable.Renewal, error)
	CheckGrants(ctx context.Context, grants []fencing.Fence) (map[fencing.Fence]leasetable.Renewal, error)
	GrantedTo(ctx context.Context, name, request string) (granted bool, err error)

	Release(ctx context.Context, fence fencing.Fence, minHold time.Duration) (released, notified bool, err error)
	ReleaseBatch(ctx context.Context, batch []fencing.Fence, minHold []time.Duration) (notified map[fencing.Fence]bool, err error)
	ReleasePermits(ctx context.Context, names []string, token fencing.Token, shared bool) (notified map[string]bool, err error)
	Revoke(ctx context.Context, r *leasetable.Request) (revoked bool, err error)

	RevokeGrant(ctx context.Context, fence fencing.Fence, reason string) (leasetable.GrantCall, error)
	RequestRelease(ctx context.Context, fence fencing.Fence, reason string) (leasetable.GrantCall, error)
	SetLabels(ctx context.Context, fence fencing.Fence, labels string, limit int) (leasetable.GrantCall, error)
	AwaitGuards(ctx context.Context, fence fencing.Fence) error

	Join(ctx context.Context, client string, r *leasetable.Request, waited time.Duration, listens bool) (leasetable.Position, error)
	RefreshTickets(ctx context.Context, tickets []leasetable.Ticket, listens bool) ([]leasetable.Position, error)
	LeaveQueue(ctx context.Context, t leasetable.Ticket) error
	DeleteRows(ctx context.Context, tickets []leasetable.Ticket) error
	QuitQueue(ctx context.Context, client string) error
	Watch(ctx context.Context, name, channel string) error
	Notify(ctx context.Context, channel string) error
	Listen(ctx context.Context, shared string, channels ...string) (Listener, error)

	NestedWait(ctx context.Context, w *leasetable.NestedWait) (cycle string, err error)
	EndNestedWait(ctx context.Context, id string) error

	Prune(ctx context.Context, idle time.Duration, page int64) (leasetable.Pruned, error)
	LiftTokens(ctx context.Context, name string) error
	DeleteDeadRows(ctx context.Context) error

	Check(ctx context.Context) error
	Close(ctx context.Context)
	Slots() int
	Database() string
	Latency() (most, slowest time.Duration)
	Suspect(since time.Time)
	Explain(op string, err error) error
}

// PruneLock is the lock that a pruning client holds.
const PruneLock = "pglock:prune"

// Listener is a connection that listens.
type Listener interface {
	WaitForNotification(ctx context.Context) (*pgconn.Notification, error)
	Ping(ctx context.Context) error
	Close(ctx context.Context) error
}

// Store is all that a client does with its locks: a Table, and what is done beside leases.
type Store interface {
	Table

	// Get returns the row of a lock, and whether the lock was ever granted.
	Get(ctx context.Context, name string) (row Row, found bool, err error)
	// WithConn and DoTx are those of pglock.Client, and fail with ErrNoDatabase if there is none.
	WithConn(ctx context.Context, fn func(conn *pgx.Conn) error) error
	DoTx(ctx context.Context, key advisory.Key, fn func(ctx context.Context, tx pgx.Tx) error, opts ...advisory.DoOption) error
	// InTx runs fn in a transaction at READ COMMITTED that holds the key, for guards and marks.
	InTx(ctx context.Context, key advisory.Key, fn func(ctx context.Context, tx pgx.Tx) error) error
	// Records runs op on the records of package once.
	Records(ctx context.Context, op func(ctx context.Context, all records.Records) error) error
}

// Row is the row of a lock, with the time since its last grant, which the Lock does not have if it
// is free.
type Row struct {
	inspect.Lock
	Age time.Duration
}

// SetKind records the kind of a lock with that capacity, 0 for one holder.
func (r *Row) SetKind(capacity int) {
	switch capacity {
	case 0:
		r.Kind = inspect.OneHolder
	case leasetable.ReadersWriter:
		r.Kind = inspect.RWLock
	default:
		r.Kind, r.Permits = inspect.Semaphore, capacity
	}
}

// PermitsSeen returns how many permits a caller sees for a weight: those of a semaphore.
func (r *Row) PermitsSeen(weight int) int {
	if r.Kind == inspect.Semaphore {
		return weight
	}
	return 0
}

type heldKey struct{}

// Grant is a grant that another process holds.
type Grant struct {
	Token  fencing.Token
	Holder string
}

// WithHeld returns a context whose calls stand under these grants.
func WithHeld(ctx context.Context, grants []Grant) context.Context {
	return context.WithValue(ctx, heldKey{}, grants)
}

// Held returns the grants of WithHeld.
func Held(ctx context.Context) []Grant {
	grants, _ := ctx.Value(heldKey{}).([]Grant)
	return grants
}

// ErrNoDatabase is the error of what needs SQL.
var ErrNoDatabase = errors.New("pglocktest: a fake has no database: use pglocktest.New")

// Inside does for the packages beside pglock what its API does not. Package pglock sets it.
var Inside interface {
	// Open opens a *pglock.Client on the store that it makes, whose life is the context. The
	// options are []pglock.Option.
	Open(ctx context.Context, store func(life context.Context) Store, options any) (client any, err error)
	// Store returns the store of a *pglock.Client.
	Store(client any) Store
	// InTx is Store.InTx with the key of a name, and reports as Client.DoTx does.
	InTx(ctx context.Context, client any, name string, fn func(ctx context.Context, tx pgx.Tx) error) error
	// Leases returns the leases of a *pglock.Client: a []*pglock.Lease.
	Leases(client any) any
	// Renew makes the holder of a *pglock.Lease renew it now, as it does from time to time.
	Renew(ctx context.Context, lease any) error
}
