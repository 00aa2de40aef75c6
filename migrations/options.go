package migrations

import (
	"fmt"

	"github.com/pglock/pglock-go/internal/schema"
)

// Option changes where the tables are.
type Option func(*config) error

type config struct {
	schema string
	grants []grantee
	role   string // who migrates, once it is known
}

// WithSchema names the schema that holds the tables: 1 to 63 bytes, quoted where
// that is needed. Default "pglock".
func WithSchema(name string) Option {
	return func(c *config) error {
		c.schema = name
		return schema.Validate(name)
	}
}

// WithUser has Up grant a role what it needs to acquire locks and to write as their
// holder, and nothing else. The role must exist. May be given several times. Default: the
// tables are their owner's alone.
func WithUser(role string) Option { return withGrant("grant_user", role) }

// WithWriter has Up grant a role what it needs to write as a holder: to check and bind
// fences that it is handed. It gets no right on any table. May be given several times.
func WithWriter(role string) Option { return withGrant("grant_writer", role) }

func withGrant(function, role string) Option {
	return func(c *config) error {
		if role == "" {
			return fmt.Errorf("%w: the role has no name", ErrInvalidOption)
		}
		c.grants = append(c.grants, grantee{function, role})
		return nil
	}
}

func newConfig(opts []Option) (config, error) {
	c := config{schema: schema.Default}
	for _, o := range opts {
		if err := o(&c); err != nil {
			return c, err
		}
	}
	return c, nil
}
