package advisory

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglock/pglock-go/internal/errs"
	"github.com/pglock/pglock-go/internal/pgtx"
)

// Usage describes one session that holds an advisory lock or waits for it.
type Usage struct {
	Key             Key
	Namespace, Name string // that NewKey made the key from, if this process remembers them
	Shared          bool
	Granted         bool

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

// session returns a description of the session for an error text.
func (u *Usage) session() string {
	who := fmt.Sprintf("process %d", u.PID)
	if u.Prepared != "" {
		who = fmt.Sprintf("prepared transaction %q", u.Prepared)
	}
	if u.ApplicationName != "" {
		who += fmt.Sprintf(" (%q)", u.ApplicationName)
	}
	if u.TransactionAge > 0 {
		who += fmt.Sprintf(", in a transaction for %v", u.TransactionAge.Round(time.Millisecond))
	}
	return who
}

// Inspect lists the sessions that hold the advisory locks of this database or wait for them. It is
// meant for diagnosis, because the list may be out of date when it is returned. The holders of a
// key come before its waiters, and the waiters are in the order of the server's queue. Acquire
// polls, so it appears only as a holder. Locks that other programs acquire with pg_advisory_lock
// are listed too, except those of two numbers.
//
// A key is a hash, which does not reveal its name. This process remembers the last few thousand
// names that it passed to NewKey. To see more than the process of other roles' sessions, a role
// needs pg_read_all_stats or pg_monitor.
func Inspect(ctx context.Context, db DB) (all []Usage, err error) {
	batch := &pgx.Batch{}
	batch.Queue(statements["inspect"]).Query(func(rows pgx.Rows) error {
		all, err = pgx.CollectRows(rows, scanUsage)
		return err
	})
	if err := db.SendBatch(ctx, batch).Close(); err != nil {
		return nil, errs.Errorf("advisory: inspect: %w", err)
	}
	return all, nil
}

// holderTimeout bounds the query that names the holder.
const holderTimeout = 500 * time.Millisecond

// nameHolder completes err, the error of begin, with a holder of the lock if the wait has timed
// out. The connection is the call's, which waits for no other then.
func (d *doCall) nameHolder(ctx context.Context, db DB, err error) error {
	var refused *NotAcquiredError
	conn := pgtx.Conn(db)
	if !errors.As(err, &refused) || !errors.Is(err, ErrTimeout) || conn == nil || conn.IsClosed() || ctx.Err() != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, holderTimeout)
	defer cancel()
	all, _ := Inspect(ctx, db) // without the holder if it fails
	for i, u := range all {
		if u.Granted && slices.Contains(d.keys, u.Key) {
			refused.Holder = &all[i]
			break
		}
	}
	return err
}

func scanUsage(row pgx.CollectableRow) (u Usage, err error) {
	var classid, objid int64
	err = row.Scan(&classid, &objid, &u.Shared, &u.Granted, &u.PID, &u.Prepared, &u.ApplicationName, &u.User, &u.ClientAddr,
		(*pgtx.Micros)(&u.SessionAge), (*pgtx.Micros)(&u.TransactionAge), (*pgtx.Micros)(&u.Waiting), &u.WaitsFor)
	u.Key = KeyFromInt64(classid<<32 | objid)
	u.Namespace, u.Name = u.Key.names()
	return u, err
}
