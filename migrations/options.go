package migrations

import "github.com/pglock/pglock-go/internal/schema"

// Option changes where the tables are.
type Option func(*config) error

type config struct {
	schema string
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

func newConfig(opts []Option) (config, error) {
	c := config{schema: schema.Default}
	for _, o := range opts {
		if err := o(&c); err != nil {
			return c, err
		}
	}
	return c, nil
}
