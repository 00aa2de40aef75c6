package sqltx

import (
	"database/sql"
	"errors"
	"fmt"
	"strconv"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
)

// rows are read already. They implement pgx.Rows.
type rows struct {
	types  *pgtype.Map
	fields []pgconn.FieldDescription
	values [][][]byte // of each row, in wire form
	at     int        // the current row
	closed bool
	err    error
}

// read takes all rows, and brings their values back into the form in which pgx got them.
func (r *rows) read(from *sql.Rows, conn *pgx.Conn) error {
	if conn == nil {
		return ErrDriver
	}
	r.types = conn.TypeMap()
	columns, err := from.ColumnTypes()
	if err != nil {
		return err
	}
	for _, c := range columns {
		r.fields = append(r.fields, field(r.types, c))
	}
	raw, into := make([]any, len(columns)), make([]any, len(columns))
	for i := range raw {
		into[i] = &raw[i]
	}
	for from.Next() {
		if err := from.Scan(into...); err != nil {
			return err
		}
		value := make([][]byte, len(raw))
		for i, v := range raw {
			if value[i], err = wire(r.types, r.fields[i], v); err != nil {
				return fmt.Errorf("sqltx: column %q: %w", r.fields[i].Name, err)
			}
		}
		r.values = append(r.values, value)
	}
	return from.Err()
}

// Close implements pgx.Rows. It does nothing but end the reading.
func (r *rows) Close() { r.closed = true }

// Err returns what went wrong.
func (r *rows) Err() error { return r.err }

// CommandTag has the number of rows only.
func (r *rows) CommandTag() pgconn.CommandTag {
	return pgconn.NewCommandTag(strconv.Itoa(len(r.values)))
}

// FieldDescriptions have name, type and format only.
func (r *rows) FieldDescriptions() []pgconn.FieldDescription { return r.fields }

// Next goes to the next row.
func (r *rows) Next() bool {
	if r.closed || r.at+1 >= len(r.values) {
		r.closed = true
		return false
	}
	r.at++
	return true
}

// current returns the row that Next went to.
func (r *rows) current() ([][]byte, error) {
	if r.err != nil {
		return nil, r.err
	}
	if r.closed || r.at < 0 {
		return nil, errors.New("sqltx: no current row: Next was not called, or was false")
	}
	return r.values[r.at], nil
}

// Scan implements pgx.Rows.
func (r *rows) Scan(dest ...any) error {
	values, err := r.current()
	if err != nil {
		return err
	}
	if whole, ok := single(dest); ok {
		err = whole.ScanRow(r)
	} else {
		err = pgx.ScanRow(r.types, r.fields, values, dest...)
	}
	if err != nil {
		r.fail(err)
	}
	return err
}

// single returns the destination that takes a whole row.
func single(dest []any) (pgx.RowScanner, bool) {
	if len(dest) != 1 {
		return nil, false
	}
	s, ok := dest[0].(pgx.RowScanner)
	return s, ok
}

func (r *rows) fail(err error) {
	if r.err == nil {
		r.err = err
	}
	r.closed = true
}

// Values implements pgx.Rows.
func (r *rows) Values() ([]any, error) {
	raw, err := r.current()
	if err != nil {
		return nil, err
	}
	values := make([]any, len(raw))
	for i, f := range r.fields {
		if values[i], err = decoded(r.types, f, raw[i]); err != nil {
			r.fail(err)
			return nil, err
		}
	}
	return values, nil
}

// RawValues are the values in the format that their field tells; see the package's comment.
func (r *rows) RawValues() [][]byte {
	if r.closed || r.at < 0 {
		return nil
	}
	return r.values[r.at]
}

// Conn is nil: the connection is database/sql's to use.
func (r *rows) Conn() *pgx.Conn { return nil }

// TypeMap is the connection's.
func (r *rows) TypeMap() *pgtype.Map { return r.types }

// row implements pgx.Row.
type row struct{ pgx.Rows }

// Scan scans the first row.
func (r row) Scan(dest ...any) error {
	defer r.Close()
	if !r.Next() {
		if err := r.Err(); err != nil {
			return err
		}
		return pgx.ErrNoRows
	}
	return r.Rows.Scan(dest...)
}
