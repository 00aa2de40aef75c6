package rowlock

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// Line is a quantity of something.
type Line[K comparable, Q Quantity] struct {
	Key      K
	Quantity Q // greater than 0
}

// Reserve takes the quantities of all lines from the stock, or of none. It returns what is left
// of each, in the order of the lines.
//
// The rows stay locked until tx ends, and the quantities are taken for good when it commits. If
// the stock does not suffice for every line, nothing has changed, no row is locked, and the
// error is a *ShortError (errors.Is ErrShort) that lists every line that could not be served, with
// what there was; a key without a row is among them, marked as missing.
//
// Rows are locked in the order of the key, so that reservations of the same things in different
// orders do not run into deadlocks. It takes one statement, and computes without overflow, in
// the type numeric. A quantity of 0 or less, and a key that comes twice, are ErrInvalidOption; so is
// a fraction that the column would round. Without lines it sends nothing.
//
// For K, waiting and failures see ForUpdate.
func Reserve[K comparable, Q Quantity](ctx context.Context, tx Tx, stock Stock, lines []Line[K, Q], opts ...StockOption) ([]Decimal, error) {
	return move(ctx, tx, stock, lines, -1, opts)
}

// Restock gives the quantities of all lines to the stock, or of none: it takes a reservation back,
// or takes a delivery in. It returns what there is then, in the order of the lines. A key
// without a row is a *MissingError; more than the column can hold is ErrRange. For the
// rest it is like Reserve.
func Restock[K comparable, Q Quantity](ctx context.Context, tx Tx, stock Stock, lines []Line[K, Q], opts ...StockOption) ([]Decimal, error) {
	return move(ctx, tx, stock, lines, 1, opts)
}

func move[K comparable, Q Quantity](ctx context.Context, tx Tx, stock Stock, lines []Line[K, Q], direction int, opts []StockOption) ([]Decimal, error) {
	c := &call{tx: tx, table: stock.Table, begun: time.Now()}
	for _, o := range opts {
		if err := o.applyStock(&c.cfg); err != nil {
			return nil, err
		}
	}
	if err := stock.check(); err != nil {
		return nil, err
	}
	if err := c.cfg.check(); err != nil {
		return nil, err
	}
	o, err := orderOf(stock, lines, direction)
	if err != nil || len(lines) == 0 {
		return nil, err
	}
	c.names([]string{stock.Quantity})
	q := c.render(moveSQL, []any{arrayText(o.texts), arrayText(o.amounts), direction}, ":quantity", quote(stock.Quantity), ":wait", c.cfg.wait())
	return attempts(func() (left []Decimal, again bool, err error) {
		err = c.run(ctx, func(ctx context.Context) error {
			found, err := tx.Query(ctx, q.sql, q.args...)
			if err != nil {
				return err
			}
			levels, err := pgx.CollectRows(found, pgx.RowToStructByPos[level])
			if err != nil {
				return err
			}
			left, err = o.judge(levels)
			if errors.Is(err, ErrMissing) { // now, or only in the statement's snapshot?
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

// order is what Reserve and Restock were asked for.
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

// level is a row of the statement's.
type level struct {
	Places []int32
	Had    Decimal
	Short  bool
	Has    *Decimal // nil if nothing was changed
	Exact  *bool
}

// judge reads the answer: what is left, or why nothing was changed.
func (o order[K]) judge(levels []level) ([]Decimal, error) {
	rows, taken, left := make([]*level, len(o.keys)), make([]bool, len(o.keys)), make([]Decimal, len(o.keys))
	for i, l := range levels {
		if err := distinct(o.stock.Table, o.keys, l.Places, taken); err != nil {
			return nil, refuse(err)
		}
		place := l.Places[0] - 1
		rows[place] = &levels[i]
		if l.Exact != nil && !*l.Exact {
			return nil, refuse(invalidOption("column %q of %s can't hold the change of %v by %s exactly",
				o.stock.Quantity, o.stock.Table, o.keys[place], o.amounts[place]))
		}
		if l.Has != nil {
			left[place] = *l.Has
		}
	}
	if err := o.lacking(rows); err != nil {
		return nil, refuse(err)
	}
	for i, l := range rows {
		if l.Has == nil {
			return nil, refuse(fmt.Errorf("rowlock: the row of %v in %s was not changed: a rule or trigger keeps it", o.keys[i], o.stock))
		}
	}
	return left, nil
}

// lacking lists what is missing or short.
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
