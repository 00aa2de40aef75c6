package runner

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/advisory"
	"github.com/pglock/pglock-go/internal/errs"
)

// sessionLock is an advisory lock of a session. It has two connections of its own, like those of
// the caller's pool: one acquires and holds the lock, the other looks up its holder. An advisory
// lock has no room for its holder's name, so the application_name of the connections has it.
type sessionLock struct {
	key    advisory.Key
	pool   *pgxpool.Pool
	caller string // its name as a holder
}

// keyNamespace keeps the keys of runners apart from those of applications.
const keyNamespace = "pglock runner"

func newSessionLock(ctx context.Context, pool *pgxpool.Pool, key advisory.Key, caller string) (*sessionLock, error) {
	const maxName = 63 // bytes that PostgreSQL keeps of application_name
	caller = caller[:min(len(caller), maxName)]
	own, err := ownPool(ctx, pool, caller)
	if err != nil {
		return nil, err
	}
	return &sessionLock{key, own, caller}, nil
}

// ownPool opens a pool of two connections like those of pool, with the holder's name as their
// application_name, so that a pool that is small or busy can't block a run.
func ownPool(ctx context.Context, pool *pgxpool.Pool, caller string) (*pgxpool.Pool, error) {
	c := pool.Config()
	c.MaxConns, c.MinConns, c.MinIdleConns, c.MaxConnIdleTime = 2, 0, 0, time.Minute
	c.ConnConfig.RuntimeParams["application_name"] = caller
	own, err := pgxpool.NewWithConfig(ctx, c)
	if err != nil {
		return nil, errs.Errorf("runner: %w", err)
	}
	return own, nil
}

func (l *sessionLock) acquire(ctx context.Context) (heldLock, error) {
	s, err := advisory.Acquire(ctx, l.pool, l.key)
	if err != nil {
		return nil, err // not a nil *Session in an interface
	}
	return s, nil
}

// holder reads again if the session has no name: the server reads the list of locks and that of
// sessions one after the other, so a session that began in between is only in the first. A session
// without a name at the second read is another program's, or the role may not see the name.
func (l *sessionLock) holder(ctx context.Context) (h holder) {
	for range 2 {
		sessions, err := advisory.Inspect(ctx, l.pool)
		if err != nil {
			return h
		}
		for _, s := range sessions {
			switch {
			case s.Key != l.key || !s.Granted:
			case s.ApplicationName == l.caller:
				return holder{}
			case s.ApplicationName != "":
				return holder{name: fmt.Sprintf("%s (server process %d)", s.ApplicationName, s.PID)}
			default:
				h.name = fmt.Sprintf("server process %d", s.PID)
			}
		}
	}
	return h
}

func (l *sessionLock) close() { l.pool.Close() }
