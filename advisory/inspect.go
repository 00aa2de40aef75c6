package advisory

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglock/pglock-go/internal/errs"
)

// Querier is what Inspect queries: a pool, a connection or a transaction.
type Querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// Usage describes one session that holds an advisory lock or waits for it.
type Usage struct {
	Key     Key
	Name    string // "namespace/name" if Names knows it, otherwise empty
	Shared  bool
	Granted bool
	Next    bool // the session holds the key's turnstile and will be granted the lock before others

	PID             uint32 // the server process; 0 for a prepared transaction
	Prepared        string // the prepared transaction, for COMMIT PREPARED or ROLLBACK PREPARED
	ApplicationName string
	User            string
	ClientAddr      string // empty on a Unix-domain socket, or if the role may not see it

	SessionAge     time.Duration // 0 if the role may not see it
	TransactionAge time.Duration // 0 outside a transaction; since PREPARE if prepared
	Waiting        time.Duration // 0 if granted, or before PostgreSQL 14
	WaitsFor       []uint32      // the blocking processes, 0 for a prepared transaction
}

// Inspect lists the sessions that hold the advisory locks of this database or wait for them. It
// is meant for people and tools: the list may be out of date when it is returned. The holders of
// a key come before its waiters, and the waiters are in the order of the server's queue. Locks
// that other programs acquire with pg_advisory_lock are listed too. A session in a turnstile is
// listed as a waiter for the key if the key is in the list or in names, and otherwise as the
// holder of the key that [Key.Turnstile] returns. names may be nil.
//
// A key is a hash, which does not reveal its name: Names remembers the names. To see more than
// the process of other roles' sessions, a role needs pg_read_all_stats or pg_monitor.
func Inspect(ctx context.Context, db Querier, names *Names) ([]Usage, error) {
	rows, err := db.Query(ctx, inspectSQL)
	if err != nil {
		return nil, errs.Errorf("advisory: inspect: %w", err)
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
		return nil, errs.Errorf("advisory: inspect: %w", err)
	}
	return withTurnstiles(all, names), nil
}

// withTurnstiles lists each session in a turnstile under the turnstile's key, after the key's
// holders.
func withTurnstiles(all []Usage, names *Names) []Usage {
	owners, holders := names.turnstiles(), map[Key][]uint32{}
	for _, u := range all {
		owners[u.Key.Turnstile()] = u.Key
		if u.Granted {
			holders[u.Key] = append(holders[u.Key], u.PID)
		}
	}
	first := map[Key]int{}
	for i := range all {
		u := &all[i]
		if key, ok := owners[u.Key]; ok {
			u.Key, u.Name, u.Granted, u.Next, u.WaitsFor = key, names.of(key), false, !u.Shared, holders[key]
		}
		if _, ok := first[u.Key]; !ok {
			first[u.Key] = i
		}
	}
	slices.SortStableFunc(all, func(a, b Usage) int {
		return cmp.Or(cmp.Compare(first[a.Key], first[b.Key]), cmp.Compare(a.rank(), b.rank()))
	})
	return all
}

// rank orders the sessions of one key: holders, the one that is next, waiters.
func (u Usage) rank() int {
	switch {
	case u.Granted:
		return 0
	case u.Next:
		return 1
	}
	return 2
}

func microseconds(n *int64) time.Duration {
	if n == nil {
		return 0
	}
	return time.Duration(*n) * time.Microsecond
}

// Names remembers the names of keys. The zero Names is empty and ready to use. It is safe for
// concurrent use. It never forgets: add the names of kinds of locks, not each of a million.
type Names struct {
	mu    sync.RWMutex
	known map[Key]string // guarded by mu
}

// Key returns NewKey(namespace, name) and remembers the name.
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

// turnstiles returns the known keys by their turnstiles.
func (n *Names) turnstiles() map[Key]Key {
	all := map[Key]Key{}
	if n == nil {
		return all
	}
	n.mu.RLock()
	defer n.mu.RUnlock()
	for key := range n.known {
		all[key.Turnstile()] = key
	}
	return all
}

func (n *Names) of(key Key) string {
	if n == nil {
		return ""
	}
	n.mu.RLock()
	defer n.mu.RUnlock()
	return n.known[key]
}
