package migrations

import (
	"errors"

	"github.com/golang-migrate/migrate/v4"
)

// stepTo returns a function that applies one migration after the other until the schema is at the
// target. golang-migrate's own Up and Down read the next file ahead, and leak the goroutine that
// reads it if the migration before fails.
func stepTo(target int) func(*migrate.Migrate) error {
	return func(m *migrate.Migrate) error {
		for {
			at, dirty, err := m.Version()
			if err != nil && !errors.Is(err, migrate.ErrNilVersion) {
				return err
			}
			step := 1
			switch {
			case dirty:
				return migrate.ErrDirty{Version: int(at)}
			case int(at) == target:
				return nil
			case int(at) > target:
				step = -1
			}
			if err := m.Steps(step); err != nil {
				return err
			}
		}
	}
}
