package migrations

import (
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/internal/errs"
	"github.com/pglock/pglock-go/internal/schema"
)

// Option configures Up, Down, Force and Version.
type Option func(*config) error

type config struct {
	schema string
	grants []grant
	report func(from, to int)
	role   string // of this connection, once it is known
}

// WithSchema sets the schema of the tables, 1 to 63 bytes, by default "pglock". Names are quoted,
// so any characters but NUL will do.
func WithSchema(name string) Option {
	return func(c *config) error {
		c.schema = name
		return schema.Validate(name)
	}
}

// WithUser makes Up grant a role the rights to acquire locks and to write as their holder, and no
// others. The role must exist, and the option may be repeated. By default only the owner of the
// tables has rights.
func WithUser(role string) Option { return withGrant("WithUser", "grant_user", role) }

// WithReader is like WithUser, but grants the rights to see locks, waiters, schedules and the state
// of idempotency keys, and no others.
func WithReader(role string) Option { return withGrant("WithReader", "grant_reader", role) }

// WithoutRole makes Up revoke from a role what the other options granted it. It does not end the
// sessions of the role, but their statements fail from then on. The role must exist, and the option
// may be repeated.
func WithoutRole(role string) Option { return withGrant("WithoutRole", "revoke_role", role) }

// WithWriter makes Up grant a role the rights to write as a holder: to check and bind the fences
// that others give it. The role gets no right on any table, and the option may be repeated.
func WithWriter(role string) Option { return withGrant("WithWriter", "grant_writer", role) }

// WithOwner makes Up grant a role the rights to protect its own tables (see package fencing). The
// role gets no right on any lock, and the option may be repeated.
func WithOwner(role string) Option { return withGrant("WithOwner", "grant_owner", role) }

func withGrant(option, function, role string) Option {
	return func(c *config) error {
		c.grants = append(c.grants, grant{function, role})
		return errs.Require("migrations", role != "", "%s: the role's name is empty", option)
	}
}

// WithReport makes Up, Down and Force call report after they have changed the version, 0 for no
// tables. They do not call it if another process changed the version, or if nothing was to be done.
func WithReport(report func(from, to int)) Option {
	return func(c *config) error {
		c.report = report
		return errs.Require("migrations", report != nil, "WithReport: the function is nil")
	}
}

func newConfig(pool *pgxpool.Pool, opts []Option) (config, error) {
	c := config{schema: schema.Default}
	if pool == nil {
		return c, errs.InvalidOption("migrations", "the pool is nil: pass a *pgxpool.Pool")
	}
	err := errs.Apply("migrations", &c, opts)
	return c, err
}
