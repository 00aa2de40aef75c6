package rowlock

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// Quantity is the type of a quantity: an integer type or Decimal.
type Quantity interface {
	~int | ~int8 | ~int16 | ~int32 | ~int64 | ~uint | ~uint8 | ~uint16 | ~uint32 | ~uint64 | Decimal
}

// Decimal is an exact decimal number, written like 12 or 0.125.
type Decimal string

// maxDigits is the largest precision of a numeric column.
const maxDigits = 1000

// Int64 returns d as an integer. If d is not one, or does not fit, the error wraps ErrRange.
func (d Decimal) Int64() (int64, error) {
	whole, fraction, _ := strings.Cut(string(d), ".")
	if strings.Trim(fraction, "0") != "" {
		return 0, fmt.Errorf("%w: %s is not an integer", ErrRange, d)
	}
	n, err := strconv.ParseInt(whole, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("%w: %w", ErrRange, err)
	}
	return n, nil
}

// Line is a quantity of one key. Take makes one.
type Line[K comparable, Q Quantity] struct {
	Key      K
	Quantity Q // greater than 0
}

// Take returns the line that takes a quantity of one key, as in Take("A-1", 2). Restock puts the
// same quantity back.
func Take[K comparable, Q Quantity](key K, quantity Q) Line[K, Q] {
	return Line[K, Q]{Key: key, Quantity: quantity}
}

// Lines returns its arguments, as in Lines(Take("A-1", 2), Take("B-7", 1)). It saves writing the
// types of keys and quantities.
func Lines[K comparable, Q Quantity](lines ...Line[K, Q]) []Line[K, Q] { return lines }

// Reserve subtracts the quantities of all lines from the stock, or of none. It returns the
// quantity that is left of each key.
//
// The rows stay locked until tx ends, and its commit makes the change permanent. If the stock does
// not suffice for every line, nothing has changed, no row is locked, and the error is a
// *ShortError (errors.Is ErrShort). It lists every line that could not be served, with the
// quantity available; a line whose key has no row is marked as missing.
//
// Rows are locked in the order of the key, so that reservations of the same keys in different
// orders do not deadlock. Reserve takes one statement, and computes in the type numeric, without
// overflow. A quantity of 0 or less, a key that is passed twice, and a fraction that the column
// would round are ErrInvalidOption. Without lines it sends nothing.
//
// K, waiting and failures are as for ForUpdate.
func Reserve[K comparable, Q Quantity](ctx context.Context, tx Tx, stock Stock, lines []Line[K, Q], opts ...Option) (ByKey[K, Decimal], error) {
	return move(ctx, tx, stock, lines, -1, opts)
}

// Restock adds the quantities of all lines to the stock, or of none: for a canceled reservation or
// a delivery. It returns the new quantity of each key. A key without a row is a
// *MissingError; a quantity that the column can't hold is ErrRange. Otherwise it is like Reserve.
func Restock[K comparable, Q Quantity](ctx context.Context, tx Tx, stock Stock, lines []Line[K, Q], opts ...Option) (ByKey[K, Decimal], error) {
	return move(ctx, tx, stock, lines, 1, opts)
}

func move[K comparable, Q Quantity](ctx context.Context, tx Tx, stock Stock, lines []Line[K, Q], direction int, opts []Option) (none ByKey[K, Decimal], err error) {
	c := &call{tx: tx, table: stock.Table, begun: time.Now()}
	for _, o := range opts {
		if err := o.applyStock(&c.cfg); err != nil {
			return none, err
		}
	}
	if err := stock.check(); err != nil {
		return none, err
	}
	if err := c.cfg.check(); err != nil {
		return none, err
	}
	o, err := orderOf(stock, lines, direction)
	if err != nil || len(lines) == 0 {
		return none, err
	}
	c.setColumns([]string{stock.Quantity})
	q := c.render(moveSQL, []any{arrayText(o.texts), arrayText(o.amounts), direction}, ":quantity", quote(stock.Quantity), ":wait", c.cfg.wait())
	return attempts(func() (left ByKey[K, Decimal], again bool, err error) {
		err = c.run(ctx, func(ctx context.Context) error {
			levels, err := collect(ctx, tx, q, pgx.RowToStructByPos[level])
			if err != nil {
				return err
			}
			left, err = o.result(levels)
			if errors.Is(err, ErrMissing) { // in the table, or only in the statement's snapshot?
				absent, failed := absentKeys(ctx, c, o.keys, o.texts)
				if failed != nil {
					return failed
				}
				again = absent == nil
			}
			return err
		})
		return left, again, err
	})
}

// order is the lines of Reserve or Restock.
type order[K comparable] struct {
	stock     Stock
	keys      []K
	texts     []string
	amounts   []string
	direction int
}

func orderOf[K comparable, Q Quantity](stock Stock, lines []Line[K, Q], direction int) (order[K], error) {
	o := order[K]{stock: stock, direction: direction}
	for _, l := range lines {
		amount, err := decimal(l.Quantity)
		if err != nil {
			return o, err
		}
		o.keys, o.amounts = append(o.keys, l.Key), append(o.amounts, string(amount))
	}
	var err error
	o.texts, err = keyTexts(o.keys)
	return o, err
}

// level is a row that move.sql returns.
type level struct {
	Positions []int32 // of the row's key in the arguments, counted from 1
	Had       Decimal
	Short     bool
	Has       *Decimal // nil if nothing was changed
	Exact     *bool
}

// result returns the new quantities, or why nothing was changed.
func (o order[K]) result(levels []level) (left ByKey[K, Decimal], err error) {
	rows, found := make([]*level, len(o.keys)), make([]bool, len(o.keys))
	for i, l := range levels {
		if err := distinct(o.stock.Table, o.keys, l.Positions, found); err != nil {
			return left, refuse(err)
		}
		at := l.Positions[0] - 1
		rows[at] = &levels[i]
		if l.Exact != nil && !*l.Exact {
			return left, refuse(invalidOption("column %q of %s would round the change of %v by %s",
				o.stock.Quantity, o.stock.Table, o.keys[at], o.amounts[at]))
		}
	}
	if err := o.lacking(rows); err != nil {
		return left, refuse(err)
	}
	for i, l := range rows {
		if l.Has == nil {
			return left, refuse(fmt.Errorf("rowlock: row %v of %s was not changed: a rule or trigger prevents it", o.keys[i], o.stock))
		}
		left.add(o.keys[i], *l.Has)
	}
	return left, nil
}

// lacking returns an error that lists the keys that are missing or short.
func (o order[K]) lacking(rows []*level) error {
	var short []Shortage
	var absent []any
	for i, k := range o.keys {
		switch row := rows[i]; {
		case row == nil:
			short = append(short, Shortage{Key: k, Wanted: Decimal(o.amounts[i]), Available: "0", Missing: true})
			absent = append(absent, k)
		case row.Short:
			short = append(short, Shortage{Key: k, Wanted: Decimal(o.amounts[i]), Available: row.Had})
		}
	}
	switch {
	case short == nil:
		return nil
	case o.direction > 0:
		return &MissingError{Table: o.stock.String(), Keys: absent}
	}
	return &ShortError{Table: o.stock.String(), Lines: short}
}

// positive checks that d is a number greater than 0.
func (d Decimal) positive() error {
	whole, fraction, point := strings.Cut(string(d), ".")
	digits := whole + fraction
	switch {
	case whole == "" || point && fraction == "" || strings.Trim(digits, "0123456789") != "":
		return invalidOption("quantity %q: must be a positive number like 3 or 0.125", string(d))
	case strings.Trim(digits, "0") == "":
		return invalidOption("quantity %s: must be positive", d)
	case len(digits) > maxDigits:
		return invalidOption("quantity has %d digits: must have at most %d", len(digits), maxDigits)
	}
	return nil
}

// decimal returns q as a positive decimal.
func decimal[Q Quantity](q Q) (Decimal, error) {
	var d Decimal
	switch v := reflect.ValueOf(q); {
	case v.CanInt():
		d = Decimal(strconv.FormatInt(v.Int(), 10))
		if v.Int() < 0 {
			return "", invalidOption("quantity %s: must be positive", d)
		}
	case v.CanUint():
		d = Decimal(strconv.FormatUint(v.Uint(), 10))
	default:
		d = Decimal(v.String())
	}
	return d, d.positive()
}
