package rowlock

import (
	"database/sql/driver"
	_ "embed"
	"fmt"
	"strings"

	"github.com/pglock/pglock-go/internal/pgtx"
	"github.com/pglock/pglock-go/internal/schema"
)

//go:embed sql/limit.sql
var limitFile string

//go:embed sql/lock.sql
var lockFile string

//go:embed sql/find.sql
var findFile string

//go:embed sql/move.sql
var moveFile string

// The statements, without the comments of their files.
var (
	limitSQL = schema.Render(limitFile, schema.Default)
	lockSQL  = schema.Render(lockFile, schema.Default)
	findSQL  = schema.Render(findFile, schema.Default)
	moveSQL  = schema.Render(moveFile, schema.Default)
)

const claimSQL = `SELECT :columns FROM :table AS t WHERE true :where ORDER BY :order LIMIT $1 FOR UPDATE OF t SKIP LOCKED`

// render inserts the table, its key and the conditions into a statement whose own parameters are
// args. more is pairs of a further placeholder and its replacement. It does not search
// the inserted text for placeholders.
func (c *call) render(sql string, args []any, more ...string) pgtx.Query {
	conditions, values := where(c.cfg.conditions, len(args)+1)
	pairs := append([]string{
		":table", c.table.String(), ":key", quote(c.table.Key), ":where", conditions,
	}, more...)
	return pgtx.Query{SQL: strings.NewReplacer(pairs...).Replace(sql), Args: append(args, values...)}
}

// Op compares a column with a value.
type Op string

// The comparisons of SQL. With NULL (nil, a nil pointer, or a driver.Valuer whose value is nil)
// Equal and NotEqual mean IS NULL and IS NOT NULL; the others are ErrInvalidOption.
const (
	Equal          Op = "="
	NotEqual       Op = "<>"
	Less           Op = "<"
	LessOrEqual    Op = "<="
	Greater        Op = ">"
	GreaterOrEqual Op = ">="
)

// filter is a condition of Where or Due.
type filter struct {
	column string
	op     Op
	value  any
	due    bool // compare with the server's clock
}

// newFilter turns each form of NULL into nil.
func newFilter(column string, op Op, value any) (filter, error) {
	f := filter{column: column, op: op, value: value}
	if pgtx.IsNil(value) {
		f.value = nil
	} else if v, ok := value.(driver.Valuer); ok {
		held, err := v.Value()
		switch {
		case err != nil:
			return f, invalidOption("value for column %q: %w", column, err)
		case held == nil:
			f.value = nil
		}
	}
	return f, f.check()
}

func (f filter) check() error {
	if err := checkName("column", f.column); err != nil {
		return err
	}
	switch f.op {
	case Equal, NotEqual:
		return nil
	case Less, LessOrEqual, Greater, GreaterOrEqual:
		if f.value == nil && !f.due {
			return invalidOption("column %q %s NULL is never true: use Equal or NotEqual", f.column, f.op)
		}
		return nil
	}
	return invalidOption("comparison %q of column %q: must be one of the Op constants", f.op, f.column)
}

// where renders the conditions, each preceded by AND, with parameters numbered from next.
func where(conditions []filter, next int) (sql string, args []any) {
	var b strings.Builder
	for _, f := range conditions {
		switch column := "t." + quote(f.column); {
		case f.due:
			fmt.Fprintf(&b, " AND %s <= statement_timestamp()", column)
		case f.value == nil && f.op == Equal:
			fmt.Fprintf(&b, " AND %s IS NULL", column)
		case f.value == nil:
			fmt.Fprintf(&b, " AND %s IS NOT NULL", column)
		default:
			fmt.Fprintf(&b, " AND %s %s $%d", column, f.op, next+len(args))
			args = append(args, f.value)
		}
	}
	return b.String(), args
}

// whereColumns returns the columns that the conditions name.
func whereColumns(conditions []filter) (names []string) {
	for _, f := range conditions {
		names = append(names, f.column)
	}
	return names
}
