package runner

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/advisory"
	"github.com/pglock/pglock-go/internal/errs"
)

// sessionLock is an advisory lock of a session. It acquires and holds the lock on one connection of
// the run's own pool, and looks up its holder on another. An advisory lock has no room for its
// holder's name, so the application_name of the connections has it.
type sessionLock struct {
	*config
	key  advisory.Key
	pool *pgxpool.Pool
}

// keyNamespace keeps the keys of runners apart from those of applications.
const keyNamespace = "pglock runner"

// sessionName returns the name of the holder as PostgreSQL keeps it in application_name.
func (c *config) sessionName() string { return c.caller[:min(len(c.caller), 63)] }

// ownPool opens a pool with the configuration of the caller's, so that a pool that is small or busy
// can't block a run: a run has at most two locks, one migration, and one look at the tables at a time.
func (c *config) ownPool(ctx context.Context, pool *pgxpool.Pool) (*pgxpool.Pool, error) {
	own := pool.Config()
	own.MaxConns, own.MinConns, own.MinIdleConns, own.MaxConnIdleTime = 4, 0, 0, time.Minute
	own.ConnConfig.RuntimeParams["application_name"] = c.sessionName()
	opened, err := pgxpool.NewWithConfig(ctx, own)
	if err != nil {
		return nil, errs.Errorf("runner: %w", err)
	}
	return opened, nil
}

func (l sessionLock) acquire(ctx context.Context) (heldLock, error) {
	return advisory.Acquire(ctx, l.pool, l.key)
}

// holder reads again if the session has no name: the server reads the list of locks and that of
// sessions one after the other, so a session that began in between is only in the first. A session
// without a name at the second read is another program's, or the role may not see the name.
func (l sessionLock) holder(ctx context.Context) (h holder) {
	for range 2 {
		sessions, err := advisory.Inspect(ctx, l.pool)
		if err != nil {
			return h
		}
		for _, s := range sessions {
			switch {
			case s.Key != l.key || !s.Granted:
			case s.ApplicationName == l.sessionName():
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
