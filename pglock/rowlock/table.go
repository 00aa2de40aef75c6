package rowlock

import (
	"embed"
	"slices"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/pglock/pglock-go/internal/errs"
	"github.com/pglock/pglock-go/internal/pgtx"
	"github.com/pglock/pglock-go/internal/schema"
)

//go:embed sql
var files embed.FS

// statements are those in files, which name no schema.
var statements = schema.Statements(files, schema.Default)

// Table names a table, which may be partitioned, and the column that identifies its rows.
type Table struct {
	// Name is the table's name, qualified by its schema or found by search_path. It is quoted.
	Name pgx.Identifier
	// Key is a column that is unique among the rows that Where selects, and whose values do not
	// change, since rows are locked in its order.
	Key string
	// Where is an optional condition on the table, which is called t, such as "t.warehouse = $1".
	// Other rows do not exist for a call. Pass values in Args, since the text becomes SQL.
	Where string
	Args  []any
}

// Stock is a table with a column of quantities. NULL counts as 0.
type Stock struct {
	Table
	Quantity string // the column, of an integer type or numeric
}

func (t Table) quoted() string { return t.Name.Sanitize() }

// checkNames refuses a name that PostgreSQL would truncate, and then find another object.
func checkNames(names []string, more ...string) error {
	for _, name := range slices.Concat(names, more) {
		if err := errs.CheckText(name, schema.MaxName); err != nil {
			return errs.InvalidOption("rowlock", "name of table or column %w", err)
		}
	}
	return nil
}

// render inserts the table and its condition into a statement, and args as its parameters :1, :2
// and so on, which are numbered after those of the condition. more is pairs of placeholder and
// text.
func (t Table) render(sql string, args []any, more ...string) pgtx.Query {
	condition := ""
	if t.Where != "" {
		condition = "AND (" + t.Where + "\n)"
	}
	pairs := append([]string{":table", t.quoted(), ":key", schema.Quote(t.Key), ":where", condition}, more...)
	for i := range args {
		pairs = append(pairs, ":"+strconv.Itoa(i+1), "$"+strconv.Itoa(len(t.Args)+i+1))
	}
	return pgtx.Query{SQL: strings.NewReplacer(pairs...).Replace(sql), Args: slices.Concat(t.Args, args)}
}

// match returns the index of the key that a row was found by, and notes it in found. positions are
// those of the row's key in the arguments, counted from 1, and there must be exactly one.
func (t Table) match(positions []int32, found []bool) (int, error) {
	if len(positions) != 1 || found[positions[0]-1] {
		return 0, refusal{errs.InvalidOption("rowlock", "column %q of %s does not match the keys one to one: it must be unique among the rows of Where, no two "+
			"keys may be equal in its type, and search_path must not hide the operator = of its type", t.Key, t.quoted())}
	}
	found[positions[0]-1] = true
	return int(positions[0] - 1), nil
}
