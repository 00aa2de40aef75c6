package migrations

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/advisory"
	"github.com/pglock/pglock-go/pglock"
)

// lock is what excludes other runs: a session's advisory lock, or a lease.
type lock interface {
	acquire(ctx context.Context) (hold, error)
	holder(ctx context.Context) (holding, error) // errNobody if it is free
	close()
}

// hold is a lock that is held. *advisory.Session and *pglock.Lease are.
type hold interface {
	Context() context.Context
	Err() error
	Release(ctx context.Context) error
}

// holding tells who holds a lock, for people.
type holding struct {
	name string
	held time.Duration
	own  bool // the asker, who was granted it just now
}

var errNobody = errors.New("migrations: nobody holds the lock")

// sessionLock is an advisory lock of a session of its own.
type sessionLock struct {
	name  string
	key   advisory.Key
	pool  *pgxpool.Pool // its own
	shown string        // of the holder's name
}

// keyNamespace keeps the keys of runners apart from those of applications.
const keyNamespace = "pglock runner"

// newSessionLock has connections of its own, like those of pool: one that asks for the
// lock, and then holds it, and one that looks who holds it.
func newSessionLock(ctx context.Context, pool *pgxpool.Pool, name, holder string) (*sessionLock, error) {
	c := pool.Config()
	c.MaxConns, c.MinConns, c.MinIdleConns = 2, 0, 0
	shown := strings.ToValidUTF8(strings.ReplaceAll(holder, "\x00", ""), "")
	shown = strings.ToValidUTF8(shown[:min(len(shown), maxShown)], "") // a character may have been cut
	c.PrepareConn = naming(c, shown)
	c.BeforeAcquire = nil //nolint:staticcheck // part of PrepareConn now
	own, err := pgxpool.NewWithConfig(ctx, c)
	if err != nil {
		return nil, fmt.Errorf("migrations: %w", err)
	}
	return &sessionLock{name, advisory.NewKey(keyNamespace, name), own, shown}, nil
}

// An advisory lock has no room to say who holds it and since when. So each connection
// says so in its application_name, just before it asks for the lock: once the lock is
// granted, the text stays. The time is the server's.
const (
	since   = " since "
	nameSQL = `SELECT set_config('application_name', $1::text || to_char(clock_timestamp() AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"'), false)`
)

// maxShown is how much of a holder's name has room: application_name ends after 63 bytes.
const maxShown = 63 - len(since) - len("2006-01-02T15:04:05Z")

// naming has a connection say who uses it, after what the pool does by itself.
func naming(c *pgxpool.Config, shown string) func(context.Context, *pgx.Conn) (bool, error) {
	prepare, before := c.PrepareConn, c.BeforeAcquire //nolint:staticcheck // callers may still set it
	return func(ctx context.Context, conn *pgx.Conn) (bool, error) {
		switch {
		case prepare != nil:
			if ok, err := prepare(ctx, conn); !ok || err != nil {
				return ok, err
			}
		case before != nil && !before(ctx, conn):
			return false, nil
		}
		_, err := conn.Exec(ctx, nameSQL, shown+since)
		return err == nil, err
	}
}

func (l *sessionLock) acquire(ctx context.Context) (hold, error) {
	s, err := advisory.Acquire(ctx, l.pool, l.key)
	if err != nil {
		return nil, err // not a nil *Session in an interface
	}
	return s, nil
}

const holderSQL = `
	SELECT l.pid, coalesce(a.application_name, ''), clock_timestamp()
	FROM pg_locks l LEFT JOIN pg_stat_activity a USING (pid)
	WHERE l.locktype = 'advisory' AND l.granted AND l.mode = 'ExclusiveLock'
	  AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
	  AND l.classid::bigint = $1 AND l.objid::bigint = $2 AND l.objsubid = $3`

func (l *sessionLock) holder(ctx context.Context) (holding, error) {
	classid, objid, objsubid := l.key.PgLocks()
	var pid int32
	var name string
	var now time.Time
	err := l.pool.QueryRow(ctx, holderSQL, int64(classid), int64(objid), objsubid).Scan(&pid, &name, &now)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return holding{}, errNobody
	case err != nil:
		return holding{}, fmt.Errorf("migrations: %w", err)
	}
	i := strings.LastIndex(name, since)
	if i < 0 { // a role that may not see it
		return holding{name: fmt.Sprintf("server process %d", pid)}, nil
	}
	begun, err := time.Parse(time.RFC3339, name[i+len(since):])
	if err != nil {
		return holding{name: fmt.Sprintf("%s (server process %d)", name, pid)}, nil //nolint:nilerr // somebody else's text
	}
	return holding{fmt.Sprintf("%s (server process %d)", name[:i], pid), max(now.Sub(begun), 0), name[:i] == l.shown}, nil
}

func (l *sessionLock) close() { l.pool.Close() }

// leaseLock is a lease.
type leaseLock struct {
	name   string
	asker  string // as a holder
	client *pglock.Client
	opts   []pglock.LeaseOption
}

func newLeaseLock(client *pglock.Client, name, holder string, opts []pglock.LeaseOption) *leaseLock {
	return &leaseLock{name, holder, client, append([]pglock.LeaseOption{pglock.WithHolder(holder)}, opts...)}
}

func (l *leaseLock) acquire(ctx context.Context) (hold, error) {
	lease, err := l.client.Acquire(ctx, l.name, l.opts...)
	if err != nil {
		return nil, err
	}
	return lease, nil
}

// holder tells for how long by this machine's clock: nothing depends on it.
func (l *leaseLock) holder(ctx context.Context) (holding, error) {
	k, err := l.client.Get(ctx, l.name)
	switch {
	case errors.Is(err, pglock.ErrNotFound), err == nil && !k.Held():
		return holding{}, errNobody
	case err != nil:
		return holding{}, err
	}
	return holding{k.Holder, max(time.Since(k.AcquiredAt), 0), k.Holder == l.asker}, nil
}

func (l *leaseLock) close() {}
