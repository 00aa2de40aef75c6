package rowlock

import (
	"database/sql/driver"
	"fmt"
	"strings"
)

// Op compares a column with a value.
type Op string

// The comparisons are SQL's. With NULL (nil, a nil pointer, or a driver.Valuer that says so) Equal
// and NotEqual mean IS NULL and IS NOT NULL; the others make no sense then.
const (
	Equal          Op = "="
	NotEqual       Op = "<>"
	Less           Op = "<"
	LessOrEqual    Op = "<="
	Greater        Op = ">"
	GreaterOrEqual Op = ">="
)

// filter is what Where and Due ask of a row.
type filter struct {
	column string
	op     Op
	value  any
	due    bool // not later than the server's clock
}

// newFilter knows NULL in each of its forms.
func newFilter(column string, op Op, value any) (filter, error) {
	c := filter{column: column, op: op, value: value}
	if isNil(value) {
		c.value = nil
	} else if v, ok := value.(driver.Valuer); ok {
		held, err := v.Value()
		switch {
		case err != nil:
			return c, invalidOption("the value for column %q: %w", column, err)
		case held == nil:
			c.value = nil
		}
	}
	return c, c.check()
}

func (c filter) check() error {
	if err := checkName("column", c.column); err != nil {
		return err
	}
	switch c.op {
	case Equal, NotEqual:
		return nil
	case Less, LessOrEqual, Greater, GreaterOrEqual:
		if c.value == nil && !c.due {
			return invalidOption("column %q %s NULL is never true", c.column, c.op)
		}
		return nil
	}
	return invalidOption("comparison %q of column %q", c.op, c.column)
}

// where renders the conditions, each with AND in front, for parameters from number next on.
func where(conditions []filter, next int) (sql string, args []any) {
	var b strings.Builder
	for _, c := range conditions {
		switch column := "t." + quote(c.column); {
		case c.due:
			fmt.Fprintf(&b, " AND %s <= statement_timestamp()", column)
		case c.value == nil && c.op == Equal:
			fmt.Fprintf(&b, " AND %s IS NULL", column)
		case c.value == nil:
			fmt.Fprintf(&b, " AND %s IS NOT NULL", column)
		default:
			fmt.Fprintf(&b, " AND %s %s $%d", column, c.op, next+len(args))
			args = append(args, c.value)
		}
	}
	return b.String(), args
}

// whereColumns are the columns that the conditions name.
func whereColumns(conditions []filter) (names []string) {
	for _, c := range conditions {
		names = append(names, c.column)
	}
	return names
}
