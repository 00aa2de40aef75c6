package rowlock

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglock/pglock-go/advisory"
	"github.com/pglock/pglock-go/internal/errs"
	"github.com/pglock/pglock-go/internal/schema"
)

// Decimal is an exact decimal number, written like 12 or 0.125. The package strconv reads it.
type Decimal string

var decimal = regexp.MustCompile(`^[0-9]+(\.[0-9]+)?$`)

// check refuses a decimal that is not a positive number.
func (d Decimal) check() error {
	positive := decimal.MatchString(string(d)) && strings.Trim(string(d), "0.") != ""
	return errs.Require("rowlock", positive, "quantity %q: must be a positive number like 3 or 0.125", string(d))
}

// Line is a quantity of one key. Take makes one with an integer.
type Line[K comparable] struct {
	Key      K
	Quantity Decimal // greater than 0
}

// Take returns the line for a quantity of one key, as in Take("A-1", 2).
func Take[K comparable, Q ~int | ~int8 | ~int16 | ~int32 | ~int64 | ~uint | ~uint8 | ~uint16 | ~uint32 | ~uint64](key K, quantity Q) Line[K] {
	return Line[K]{Key: key, Quantity: Decimal(fmt.Sprintf("%d", quantity))}
}

// Lines returns its arguments, as in Lines(Take("A-1", 2), Take("B-7", 1)).
func Lines[K comparable](lines ...Line[K]) []Line[K] { return lines }

// Reserve subtracts the quantities of all lines from the stock, or of none. It returns the
// quantity that is left of each key.
//
// If the stock does not suffice for every line, nothing has changed, no row is locked, and the
// error is a *ShortError. It lists every line that could not be served, with the quantity
// available; a line whose key has no row is marked as missing.
//
// The sum is computed in the type numeric, without overflow. A quantity of 0 or less, a key that is
// passed twice, and a fraction that the column would round are advisory.ErrInvalidOption. The order
// of locks, K, waiting and failures are as for Lock, and of its options only NoWait is allowed.
func Reserve[K comparable](ctx context.Context, tx advisory.Tx, stock Stock, lines []Line[K], opts ...Option) (map[K]Decimal, error) {
	return move(ctx, tx, stock, lines, -1, opts)
}

// Restock adds the quantities of all lines to the stock, or of none: for a canceled reservation or
// a delivery. It returns the new quantity of each key. A key without a row is a *MissingError, and
// a quantity that the column can't hold is ErrRange. Otherwise it is like Reserve.
func Restock[K comparable](ctx context.Context, tx advisory.Tx, stock Stock, lines []Line[K], opts ...Option) (map[K]Decimal, error) {
	return move(ctx, tx, stock, lines, 1, opts)
}

func move[K comparable](ctx context.Context, tx advisory.Tx, stock Stock, lines []Line[K], direction int, opts []Option) (map[K]Decimal, error) {
	how, words, err := combine(opts, NoWait)
	if err != nil {
		return nil, err
	}
	if err := checkNames(stock.Name, stock.Key, stock.Quantity); err != nil {
		return nil, err
	}
	keys, amounts := make([]K, len(lines)), make([]string, len(lines))
	for i, l := range lines {
		if err := l.Quantity.check(); err != nil {
			return nil, err
		}
		keys[i], amounts[i] = l.Key, string(l.Quantity)
	}
	array, err := keyArray(keys)
	if err != nil || len(lines) == 0 {
		return nil, err
	}
	q := stock.render(statements["move"], []any{array, arrayText(amounts), direction}, append(words, ":quantity", schema.Quote(stock.Quantity))...)
	c := &call{tx: tx, table: stock.quoted(), noWait: how&NoWait != 0, begun: time.Now()}
	return run(ctx, c, func(ctx context.Context) (map[K]Decimal, error) {
		levels, err := collect(ctx, tx, q, pgx.RowToStructByPos[level])
		if err != nil {
			return nil, err
		}
		rows, found := slices.Repeat([]level{{Had: "0"}}, len(lines)), make([]bool, len(lines))
		for _, l := range levels {
			at, err := stock.match(l.Positions, found)
			if err != nil {
				return nil, err
			}
			rows[at] = l
		}
		left, err := settle(stock, lines, rows)
		none := missing(keys, found)
		if none == nil {
			return left, err
		}
		if direction > 0 {
			err = refusal{&MissingError{Table: c.table, Keys: none}}
		}
		return nil, c.refuseMissing(ctx, stock.Table, none, err)
	})
}

// level is a row that move.sql returns.
type level struct {
	Positions []int32 // of the row's key in the arguments, counted from 1; nil if the key has no row
	Had       Decimal
	Short     bool
	Has       *Decimal // nil if nothing was changed
	Exact     *bool
}

// settle returns the new quantities of the lines, or why nothing was changed.
func settle[K comparable](stock Stock, lines []Line[K], rows []level) (map[K]Decimal, error) {
	left, short := make(map[K]Decimal, len(lines)), &ShortError{Table: stock.quoted()}
	for i, l := range lines {
		switch row := rows[i]; {
		case row.Short || row.Positions == nil:
			short.Lines = append(short.Lines, Shortage{Key: l.Key, Wanted: l.Quantity, Available: row.Had, Missing: !row.Short})
		case row.Has != nil && !*row.Exact:
			return nil, refusal{errs.InvalidOption("rowlock", "column %q of %s would round the change of %v by %s", stock.Quantity, stock.quoted(), l.Key, l.Quantity)}
		case row.Has != nil:
			left[l.Key] = *row.Has
		}
	}
	switch {
	case short.Lines != nil: // then no row was changed
		return nil, refusal{short}
	case len(left) < len(lines):
		return nil, refusal{fmt.Errorf("rowlock: only %d of %d rows of %s were changed: a rule or trigger prevents the others", len(left), len(lines), stock.quoted())}
	}
	return left, nil
}
