package leasetable

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/pglock/pglock-go/fencing"
	"github.com/pglock/pglock-go/internal/errs"
)

// LockInfo describes a lock that is held, or was held.
type LockInfo struct {
	Name       string
	Token      fencing.Token // of the last grant
	Version    int64         // grows by one with every change of the row
	Holder     string        // empty if released
	Labels     map[string]string
	AcquiredAt time.Time     // by the server's clock
	Remaining  time.Duration // until the grant expires unless renewed; 0 if not held

	age time.Duration // since AcquiredAt
}

// Held reports whether the lock was held when Get read it.
func (k LockInfo) Held() bool { return k.Remaining > 0 }

// Get returns information about the lock name. The lock may have changed when Get returns. Get
// returns ErrNotFound if the name was never granted or its row has been pruned; the lock is free
// then. If ctx ends first, the error wraps the error and cause of ctx. If the server does not
// answer within 5 s, it wraps ErrUnavailable.
func (c *Client) Get(ctx context.Context, name string) (LockInfo, error) {
	k := LockInfo{Name: name}
	if err := checkName(name); err != nil {
		return k, err
	}
	if err := c.beginCall(); err != nil {
		return k, err
	}
	defer c.endCall()
	row, found, err := c.store.Get(ctx, name)
	switch {
	case err != nil && ctx.Err() != nil:
		return k, errs.Errorf("pglock: get %q: %w", name, endOf(ctx))
	case err != nil:
		return k, c.store.Explain(fmt.Sprintf("get %q", name), err)
	case !found:
		return k, errs.Errorf("%w: %q", ErrNotFound, name)
	}
	k = LockInfo{
		Name: name, Token: row.Token, Version: row.Version, Holder: row.Holder,
		AcquiredAt: row.AcquiredAt, Remaining: row.Remaining, age: row.Age,
	}
	if err := json.Unmarshal([]byte(row.Labels), &k.Labels); err != nil {
		return k, errs.Errorf("pglock: get %q: labels: %w", name, err)
	}
	return k, nil
}
