package runner

import (
	"context"
	_ "embed" // holderSQL
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/advisory"
	"github.com/pglock/pglock-go/internal/errs"
)

// sessionLock is an advisory lock of a session. It has two connections of its own, like those of
// the caller's pool: one acquires and holds the lock, the other looks up its holder.
type sessionLock struct {
	key         advisory.Key
	pool        *pgxpool.Pool
	displayName string // of this caller, as other runners see it
}

// keyNamespace keeps the keys of runners apart from those of applications.
const keyNamespace = "pglock runner"

func newSessionLock(ctx context.Context, pool *pgxpool.Pool, key advisory.Key, holder string) (*sessionLock, error) {
	name := displayName(holder)
	own, err := ownPool(ctx, pool, func(c *pgxpool.Config) {
		c.PrepareConn = setApplicationName(c, name)
		c.BeforeAcquire = nil //nolint:staticcheck // setApplicationName calls it
	})
	if err != nil {
		return nil, err
	}
	return &sessionLock{key, own, name}, nil
}

// ownPool opens a pool of two connections like those of pool, so that a pool that is small or busy
// can't block a run.
func ownPool(ctx context.Context, pool *pgxpool.Pool, configure func(*pgxpool.Config)) (*pgxpool.Pool, error) {
	c := pool.Config()
	c.MaxConns, c.MinConns, c.MinIdleConns = 2, 0, 0
	configure(c)
	own, err := pgxpool.NewWithConfig(ctx, c)
	if err != nil {
		return nil, errs.Errorf("runner: %w", err)
	}
	return own, nil
}

// An advisory lock has no room for its holder's name and time. So each connection writes them to
// its application_name just before it acquires the lock, and the text stays while it holds the
// lock. The time is the server's.
const (
	since   = " since "
	nameSQL = `SELECT set_config('application_name', $1::text || to_char(clock_timestamp() AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"'), false)`
)

// maxDisplayName is the room for a holder's name: PostgreSQL cuts application_name after 63 bytes.
const maxDisplayName = 63 - len(since) - len("2006-01-02T15:04:05Z")

// displayName returns the holder's name as far as application_name can hold it.
func displayName(holder string) string {
	name := strings.ToValidUTF8(strings.ReplaceAll(holder, "\x00", ""), "")
	return strings.ToValidUTF8(name[:min(len(name), maxDisplayName)], "") // the cut may have split a character
}

// setApplicationName returns a PrepareConn that first calls the pool's own hooks and then sets
// application_name.
func setApplicationName(c *pgxpool.Config, name string) func(context.Context, *pgx.Conn) (bool, error) {
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
		_, err := conn.Exec(ctx, nameSQL, name+since)
		return err == nil, err
	}
}

func (l *sessionLock) acquire(ctx context.Context) (heldLock, error) {
	s, err := advisory.Acquire(ctx, l.pool, l.key)
	if err != nil {
		return nil, err // not a nil *Session in an interface
	}
	return s, nil
}

//go:embed sql/holder.sql
var holderSQL string

// maxHolderReads bounds the reads of a lock that changes hands at each of them.
const maxHolderReads = 5

// holder reads until it finds a runner of this package, no holder, or the same session twice. That
// session is another program, or the role may not see its name.
//
// One read is not enough, because the name it returns may be older than the lock. A session sets
// its name before the server grants it the lock, so a second read of the same session finds the
// name.
func (l *sessionLock) holder(ctx context.Context) (holderInfo, error) {
	classid, objid, objsubid := l.key.PgLocks()
	var last, pid int32
	var name string
	for range maxHolderReads {
		var found bool
		var now time.Time
		err := l.pool.QueryRow(ctx, holderSQL, int64(classid), int64(objid), objsubid).Scan(&pid, &name, &found, &now)
		switch {
		case errors.Is(err, pgx.ErrNoRows):
			return holderInfo{}, errNoHolder
		case err != nil:
			return holderInfo{}, errs.Errorf("runner: read the lock's holder: %w", err)
		}
		if holder, ok := l.parseHolder(pid, name, now); ok {
			return holder, nil
		}
		if found && pid == last {
			break
		}
		last = pid
	}
	if name == "" {
		return holderInfo{name: fmt.Sprintf("server process %d", pid)}, nil
	}
	return holderInfo{name: fmt.Sprintf("%s (server process %d)", name, pid)}, nil
}

// parseHolder reads an application_name that nameSQL wrote, and returns false for any other text.
func (l *sessionLock) parseHolder(pid int32, name string, now time.Time) (holderInfo, bool) {
	i := strings.LastIndex(name, since)
	if i < 0 {
		return holderInfo{}, false
	}
	start, err := time.Parse(time.RFC3339, name[i+len(since):])
	if err != nil {
		return holderInfo{}, false
	}
	return holderInfo{fmt.Sprintf("%s (server process %d)", name[:i], pid), max(now.Sub(start), 0), name[:i] == l.displayName}, true
}

func (l *sessionLock) close() { l.pool.Close() }
