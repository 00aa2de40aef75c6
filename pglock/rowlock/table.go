package rowlock

import (
	"strings"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
)

// Table names a table, a partitioned one too, and the column that its rows are known by.
type Table struct {
	// Name of the table, with its schema in front or as search_path finds it. The parts are
	// names as PostgreSQL keeps them; they are quoted here.
	Name pgx.Identifier
	// Key is a column that is unique in the table (or among the rows that Where leaves), and
	// whose values do not change: locks are taken in its order.
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
		return invalidOption("a table's name of %d parts", len(t.Name))
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

// maxName is NAMEDATALEN-1: PostgreSQL would cut longer names silently, and find another one.
const maxName = 63

func checkName(of, name string) error {
	switch {
	case name == "":
		return invalidOption("the name of the %s is empty", of)
	case len(name) > maxName:
		return invalidOption("the name of the %s, %q, has %d bytes, PostgreSQL keeps %d", of, name, len(name), maxName)
	case !utf8.ValidString(name) || strings.ContainsRune(name, 0):
		return invalidOption("the name of the %s, %q, is not UTF-8 without NUL", of, name)
	}
	return nil
}

func quote(name string) string { return pgx.Identifier{name}.Sanitize() }

// quoteAll returns the names as a list, each with the prefix in front.
func quoteAll(prefix string, names []string) string {
	quoted := make([]string, len(names))
	for i, n := range names {
		quoted[i] = prefix + quote(n)
	}
	return strings.Join(quoted, ", ")
}
