package store

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
)

// Definition is a row of lock_definitions.
type Definition struct {
	Pattern string
	TTL     time.Duration // 0: none
	Team    string
	Purpose string
}

// Define stores a definition, or replaces that of the same pattern. It tries twice.
func (s *Store) Define(ctx context.Context, d Definition) error {
	return s.sendTwice(ctx, statement{sql: s.sql.define, args: []any{d.Pattern, d.TTL.Microseconds(), d.Team, d.Purpose}})
}

// Undefine deletes the definition of a pattern, and reports whether there was one.
func (s *Store) Undefine(ctx context.Context, pattern string) (found bool, err error) {
	_, err = s.send(ctx, statement{sql: s.sql.undefine, args: []any{pattern}, row: func(pgx.Rows) error { found = true; return nil }})
	return found, err
}

// Definitions returns all definitions. It tries twice.
func (s *Store) Definitions(ctx context.Context) (all []Definition, err error) {
	err = s.twice(ctx, func(ctx context.Context) error {
		all = nil // without the rows of an attempt that failed half-way
		_, err := s.send(ctx, statement{sql: s.sql.definitions, row: func(r pgx.Rows) error {
			var d Definition
			var us int64
			err := r.Scan(&d.Pattern, &us, &d.Team, &d.Purpose)
			d.TTL = time.Duration(us) * time.Microsecond
			all = append(all, d)
			return err
		}})
		return err
	})
	return all, err
}
