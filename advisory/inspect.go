package advisory

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
)

// Querier is what Inspect reads with: a pool, a connection or a transaction.
type Querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// Usage is one session's use of one advisory lock: it holds it or waits for it.
type Usage struct {
	Key     Key
	Name    string // "namespace/name" where Names knows it, otherwise empty
	Shared  bool
	Granted bool

	PID             uint32 // of the server's process; 0 if a prepared transaction holds it
	Prepared        string // the name of that, for COMMIT PREPARED or ROLLBACK PREPARED
	ApplicationName string
	User            string
	ClientAddr      string // empty on a Unix-domain socket, or where the role may not see it

	SessionAge     time.Duration // 0 where the role may not see it
	TransactionAge time.Duration // 0 outside a transaction; of a prepared one, since it was prepared
	Waiting        time.Duration // 0 if granted, or before PostgreSQL 14
	WaitsFor       []uint32      // the processes in the way, 0 for a prepared transaction
}

// Inspect lists who holds the advisory locks of this database and who waits for them, for people
// and tools: by the time it is read it may have changed. The holders of a key come before those that wait, and
// those in the order in which they wait. Locks that other programs take with pg_advisory_lock are listed
// too. names may be nil.
//
// A key is a hash, which tells nothing of its name: Names remembers what it is asked to. Roles need
// pg_read_all_stats (or pg_monitor) to see more than the process of other roles' sessions.
func Inspect(ctx context.Context, db Querier, names *Names) ([]Usage, error) {
	rows, err := db.Query(ctx, inspectSQL)
	if err != nil {
		return nil, fmt.Errorf("advisory: inspect: %w", err)
	}
	all, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (Usage, error) {
		var u Usage
		var classid, objid int64
		var objsubid int16
		var session, transaction, waiting *int64
		err := row.Scan(&classid, &objid, &objsubid, &u.Shared, &u.Granted, &u.PID, &u.Prepared, &u.ApplicationName, &u.User, &u.ClientAddr,
			&session, &transaction, &waiting, &u.WaitsFor)
		u.Key = fromPgLocks(uint32(classid), uint32(objid), objsubid)
		u.Name = names.of(u.Key)
		u.SessionAge, u.TransactionAge, u.Waiting = microseconds(session), microseconds(transaction), microseconds(waiting)
		return u, err
	})
	if err != nil {
		return nil, fmt.Errorf("advisory: inspect: %w", err)
	}
	return all, nil
}

func microseconds(n *int64) time.Duration {
	if n == nil {
		return 0
	}
	return time.Duration(*n) * time.Microsecond
}

// Names remembers the names behind keys. The zero Names is empty. It is safe for concurrent use, and keeps
// what it was told until it is dropped itself: tell it of kinds of locks, not of each of a million.
type Names struct {
	mu    sync.RWMutex
	known map[Key]string // guarded by mu
}

// Key is NewKey, and remembers the name.
func (n *Names) Key(namespace, name string) Key {
	key := NewKey(namespace, name)
	if key.check() != nil {
		return key
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.known == nil {
		n.known = map[Key]string{}
	}
	n.known[key] = namespace + "/" + name
	return key
}

func (n *Names) of(key Key) string {
	if n == nil {
		return ""
	}
	n.mu.RLock()
	defer n.mu.RUnlock()
	return n.known[key]
}
