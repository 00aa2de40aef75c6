package fencing

import (
	"fmt"

	"github.com/pglock/pglock-go/internal/schema"
)

// Option says how a table is protected. A SchemaOption is one too.
type Option interface{ apply(*protection) error }

// SchemaOption names the schema of the lock tables.
type SchemaOption string

// WithSchema names the schema of the lock tables. Default "pglock".
func WithSchema(name string) SchemaOption { return SchemaOption(name) }

func (o SchemaOption) apply(p *protection) error {
	p.schema = string(o)
	return schema.Validate(p.schema)
}

// protection is what the options say.
type protection struct {
	schema     string
	column     string
	permissive bool
	perTable   bool
	namedBy    string
}

type optionFunc func(*protection) error

func (f optionFunc) apply(p *protection) error { return f(p) }

// WithColumn names the token column. It is added, as a bigint, unless it is there.
// Default "fence_token".
func WithColumn(name string) Option {
	return optionFunc(func(p *protection) error {
		const longest = 63 // NAMEDATALEN-1: PostgreSQL would cut it silently
		if name == "" || len(name) > longest {
			return fmt.Errorf("%w: the token column's name %q has %d bytes, 1 to %d are allowed", ErrInvalidOption, name, len(name), longest)
		}
		p.column = name
		return nil
	})
}

// Permissive lets writes pass that come without a grant, while not all writers bind one
// yet. They leave the token as it is; those with a grant are still checked. Default
// strict: they are refused.
func Permissive() Option {
	return optionFunc(func(p *protection) error { p.permissive = true; return nil })
}

// PerTable compares a write with the newest token that any row of the table was written
// with, and not only with that of the row itself. Default per row.
func PerTable() Option {
	return optionFunc(func(p *protection) error { p.perTable = true; return nil })
}

// NamedBy tells to which lock a row belongs: the template of its name, with columns of
// the row in braces, for instance "account:{id}". A grant of another lock can't write
// the row then, nor move it to a lock that is not bound. A column's value is taken as the
// server writes it as text; where it is NULL the row belongs to no lock and can't be
// written. Generated columns can't be used. Default: any lock will do.
func NamedBy(template string) Option {
	return optionFunc(func(p *protection) error {
		if template == "" {
			return fmt.Errorf("%w: the template of a lock's name is empty", ErrInvalidOption)
		}
		p.namedBy = template
		return nil
	})
}

func newProtection(opts []Option) (protection, error) {
	p := protection{schema: schema.Default, column: "fence_token"}
	for _, o := range opts {
		if o == nil {
			return p, fmt.Errorf("%w: it is nil", ErrInvalidOption)
		}
		if err := o.apply(&p); err != nil {
			return p, err
		}
	}
	if p.perTable && p.namedBy != "" {
		return p, fmt.Errorf("%w: PerTable with NamedBy: holders of different locks would keep each other out of the table", ErrInvalidOption)
	}
	return p, nil
}

func newSchemaConfig(opts []SchemaOption) (protection, error) {
	p := protection{schema: schema.Default}
	for _, o := range opts {
		if err := o.apply(&p); err != nil {
			return p, err
		}
	}
	return p, nil
}
