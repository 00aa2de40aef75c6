package leasetable

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglock/pglock-go/fencing"
)

// Lock is a row of the table: a lock that is held, or was.
type Lock struct {
	Name       string
	Token      fencing.Token // of the last grant
	Version    int64         // grows by one on every change of the row
	Holder     string        // empty if it was released
	Labels     map[string]string
	AcquiredAt time.Time     // by the server's clock
	Remaining  time.Duration // of the grant unless renewed; 0 if nobody holds the lock

	age time.Duration // since it was acquired
}

// Held reports whether somebody held the lock when it was read.
func (k Lock) Held() bool { return k.Remaining > 0 }

// Get reads the lock of that name. It returns ErrNotFound if the name was never
// granted or has been pruned, and then too anybody may acquire it. The answer may
// be out of date when it arrives.
func (c *Client) Get(ctx context.Context, name string) (Lock, error) {
	k := Lock{Name: name}
	if err := checkName(name); err != nil {
		return k, err
	}
	if err := c.enter(); err != nil {
		return k, err
	}
	defer c.leave()
	var labels string
	var us, age int64
	found := false
	err := c.askTwice(ctx, statement{sql: c.sql.get, args: []any{name}, row: func(r pgx.Rows) error {
		found = true
		return r.Scan(&k.Token, &k.Version, &k.Holder, &labels, &k.AcquiredAt, &us, &age)
	}})
	if err != nil {
		return k, explain(c.cfg.schema, fmt.Sprintf("get %q", name), err)
	}
	if !found {
		return k, fmt.Errorf("%w: %q", ErrNotFound, name)
	}
	k.age = time.Duration(age) * time.Microsecond
	k.Remaining = time.Duration(us) * time.Microsecond
	if err := json.Unmarshal([]byte(labels), &k.Labels); err != nil {
		return k, fmt.Errorf("leasetable: get %q: labels: %w", name, err)
	}
	return k, nil
}
