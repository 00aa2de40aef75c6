package store

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglock/pglock-go/fencing"
)

// Row is the row of a lock.
type Row struct {
	Token      fencing.Token
	Version    int64
	Holder     string // empty if released
	Labels     string // JSON
	AcquiredAt time.Time
	Remaining  time.Duration
	Age        time.Duration // since AcquiredAt
}

// Get reads the row of a lock, and reports whether there is one. It tries twice.
func (s *Store) Get(ctx context.Context, name string) (row Row, found bool, err error) {
	var left, age int64
	err = s.sendTwice(ctx, statement{sql: s.sql.get, args: []any{name}, row: func(r pgx.Rows) error {
		found = true
		return r.Scan(&row.Token, &row.Version, &row.Holder, &row.Labels, &row.AcquiredAt, &left, &age)
	}})
	row.Remaining, row.Age = time.Duration(left)*time.Microsecond, time.Duration(age)*time.Microsecond
	return row, found, err
}

// GrantedTo reports whether the lock is held by the grant of that request. It tries twice.
func (s *Store) GrantedTo(ctx context.Context, name, request string) (granted bool, err error) {
	err = s.sendTwice(ctx, statement{sql: s.sql.grantedTo, args: []any{name, request}, row: func(r pgx.Rows) error {
		return r.Scan(&granted)
	}})
	return granted, err
}

// pruneStep is the number of rows that one statement examines: see sql/prune.sql.
const pruneStep = 1000

// PruneLock is the lock that a pruning client holds.
const PruneLock = "pglock:prune"

// Pruned is the result of one step of pruning.
type Pruned struct {
	Deleted int64
	Last    string        // name of the last row that was examined
	Highest fencing.Fence // the highest token that was seen
	Done    bool          // there are no further rows
}

// Prune examines some rows whose names follow after, and deletes those that have been idle for the
// given time. It tries twice.
func (s *Store) Prune(ctx context.Context, idle time.Duration, after string) (p Pruned, err error) {
	var seen int
	err = s.sendTwice(ctx, statement{s.sql.prune, []any{idle.Microseconds(), after}, func(r pgx.Rows) error {
		return r.Scan(&seen, &p.Last, &p.Deleted, &p.Highest.Name, &p.Highest.Token)
	}})
	p.Done = seen < pruneStep
	return p, err
}

// LiftTokens raises the token sequence above the token of the row with that name. It tries twice.
func (s *Store) LiftTokens(ctx context.Context, name string) error {
	return s.sendTwice(ctx, statement{sql: s.sql.lift, args: []any{name}})
}
