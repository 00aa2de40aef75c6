package rowlock

import (
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/pglock/pglock-go/internal/errs"
)

// Table names a table, which may be partitioned, and the column that identifies its rows.
type Table struct {
	// Name is the table's name, qualified by its schema or found by search_path. Its parts are
	// the names as PostgreSQL stores them; this package quotes them.
	Name pgx.Identifier
	// Key is a column that is unique in the table, or among the rows that Where selects, and
	// whose values do not change: rows are locked in its order.
	Key string
}

// Stock is a table with a column of quantities, of an integer type or numeric. NULL counts as 0.
type Stock struct {
	Table
	Quantity string
}

// String returns the quoted name.
func (t Table) String() string { return t.Name.Sanitize() }

func (t Table) check() error {
	if len(t.Name) < 1 || len(t.Name) > 3 {
		return invalidOption("table name has %d parts: must have 1 to 3", len(t.Name))
	}
	for _, part := range t.Name {
		if err := checkName("table", part); err != nil {
			return err
		}
	}
	return checkName("key column", t.Key)
}

func (s Stock) check() error {
	if err := s.Table.check(); err != nil {
		return err
	}
	if s.Quantity == s.Key {
		return invalidOption("column %q is both key and quantity", s.Key)
	}
	return checkName("quantity column", s.Quantity)
}

// maxName is NAMEDATALEN-1: PostgreSQL would truncate a longer name, and find another object.
const maxName = 63

func checkName(what, name string) error {
	if err := errs.CheckText(name, maxName); err != nil {
		return invalidOption("name of %s %w", what, err)
	}
	return nil
}

func quote(name string) string { return pgx.Identifier{name}.Sanitize() }

// quoteAll returns the columns of table t as a list.
func quoteAll(columns []string) string {
	quoted := make([]string, len(columns))
	for i, n := range columns {
		quoted[i] = "t." + quote(n)
	}
	return strings.Join(quoted, ", ")
}

// renamed returns a list of aliases for the columns, and one that gives them their names back.
func renamed(columns []string) (aliases, names string) {
	as, back := make([]string, len(columns)), make([]string, len(columns))
	for i, n := range columns {
		as[i] = "c" + strconv.Itoa(i)
		back[i] = as[i] + " AS " + quote(n)
	}
	return strings.Join(as, ", "), strings.Join(back, ", ")
}
