package fencing

import (
	"github.com/pglock/pglock-go/internal/errs"
	"github.com/pglock/pglock-go/internal/schema"
)

// Option configures Protect, as a SchemaOption also does.
type Option interface{ apply(*protection) error }

// SchemaOption sets the schema of the lock tables.
type SchemaOption interface {
	Option
	schemaOption()
}

type inSchema string

// WithSchema sets the schema of the lock tables, which by default is "pglock".
func WithSchema(name string) SchemaOption { return inSchema(name) }

func (inSchema) schemaOption() {}

func (o inSchema) apply(p *protection) error {
	p.schema = string(o)
	return schema.Validate(p.schema)
}

type protection struct {
	schema     string
	column     string
	permissive bool
	namedBy    string
}

type optionFunc func(*protection) error

func (f optionFunc) apply(p *protection) error { return f(p) }

// WithColumn sets the name of the token column, 1 to 63 bytes. Protect adds the column, a bigint,
// if it is missing. The default is "fence_token".
func WithColumn(name string) Option {
	return optionFunc(func(p *protection) error {
		p.column = name
		return errs.Require("fencing", name != "" && len(name) <= schema.MaxName, "WithColumn: %q has %d bytes: must be 1 to %d bytes",
			name, len(name), schema.MaxName)
	})
}

// Permissive lets writes without a grant pass, for the time until all writers bind one. Such writes
// leave the token unchanged. Writes with a grant are still checked. Default: strict, the table
// refuses writes without a grant.
func Permissive() Option {
	return optionFunc(func(p *protection) error { p.permissive = true; return nil })
}

// NamedBy sets the lock that each row belongs to, as a template with columns of the row in braces,
// for instance "account:{id}". A grant of another lock can't write the row, and can't move it to a
// lock that is not bound. A row with NULL in one of the columns belongs to no lock and can't be
// written.
//
// The columns must not be generated, and their type must be smallint, integer, bigint, numeric,
// text, varchar, name, uuid, or a domain over one of them; otherwise the error is ErrColumn. The
// text of other types depends on settings of the session, such as DateStyle, or on where it is
// converted, and that of an enum changes when its owner renames a value. A column that is renamed
// later is looked up by its new name. Separate several columns by a character that they can't
// contain, because two rows with the same spelling belong to one lock; a template with two columns
// side by side, such as "{a}{b}", is ErrInvalidOption. Default: a grant of any lock passes.
func NamedBy(template string) Option {
	return optionFunc(func(p *protection) error {
		p.namedBy = template
		return errs.Require("fencing", template != "", "NamedBy: the template is empty")
	})
}

// newProtection applies the options, which are SchemaOptions in calls that know no others.
func newProtection[O Option](db DB, opts []O) (protection, error) {
	p := protection{schema: schema.Default, column: "fence_token"}
	if db == nil {
		return p, errs.InvalidOption("fencing", "the database is nil: pass a pool, a connection or a transaction")
	}
	err := errs.ApplyBy("fencing", &p, opts, func(o O, p *protection) error { return o.apply(p) })
	return p, err
}
