package sqltx

import (
	"cmp"
	"database/sql"
	"errors"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/pglock/pglock-go/internal/errs"
)

type rows struct {
	types  *pgtype.Map
	fields []pgconn.FieldDescription
	values [][][]byte // of each row, in the format of its field
	at     int        // the current row; -1 before the first
	closed bool
	err    error
}

// read reads all rows and encodes their values as pgx received them.
func (r *rows) read(from *sql.Rows, conn *pgx.Conn) error {
	if conn == nil {
		return errs.ErrDriver
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
				return errs.Errorf("sqltx: column %q: %w", r.fields[i].Name, err)
			}
		}
		r.values = append(r.values, value)
	}
	return from.Err()
}

// Close implements pgx.Rows, and ends the rows even if some were not read.
func (r *rows) Close() { r.closed = true }

func (r *rows) Err() error { return r.err }

func (r *rows) CommandTag() pgconn.CommandTag {
	return pgconn.NewCommandTag(strconv.Itoa(len(r.values)))
}

func (r *rows) FieldDescriptions() []pgconn.FieldDescription { return r.fields }

func (r *rows) Next() bool {
	if r.closed || r.at+1 >= len(r.values) {
		r.closed = true
		return false
	}
	r.at++
	return true
}

func (r *rows) current() ([][]byte, error) {
	if r.err != nil {
		return nil, r.err
	}
	if r.closed || r.at < 0 {
		return nil, errors.New("sqltx: no current row: Next was not called, or has returned false")
	}
	return r.values[r.at], nil
}

func (r *rows) Scan(dest ...any) error {
	values, err := r.current()
	if err != nil {
		return err
	}
	if len(dest) == 1 {
		if whole, ok := dest[0].(pgx.RowScanner); ok {
			return r.fail(whole.ScanRow(r))
		}
	}
	return r.fail(pgx.ScanRow(r.types, r.fields, values, dest...))
}

// fail ends the rows with err, unless it is nil, and returns it.
func (r *rows) fail(err error) error {
	if err != nil {
		r.err, r.closed = cmp.Or(r.err, err), true
	}
	return err
}

func (r *rows) Values() ([]any, error) {
	raw, err := r.current()
	if err != nil {
		return nil, err
	}
	values := make([]any, len(raw))
	for i, f := range r.fields {
		if raw[i] == nil {
			continue
		}
		if t, ok := r.types.TypeForOID(f.DataTypeOID); !ok {
			values[i] = string(raw[i])
		} else if values[i], err = t.Codec.DecodeValue(r.types, f.DataTypeOID, f.Format, raw[i]); err != nil {
			return nil, r.fail(err)
		}
	}
	return values, nil
}

func (r *rows) RawValues() [][]byte {
	values, _ := r.current() // nil without one
	return values
}

// Conn returns nil: the connection belongs to database/sql.
func (r *rows) Conn() *pgx.Conn { return nil }

func (r *rows) TypeMap() *pgtype.Map { return r.types }

// row implements pgx.Row with the first one of its rows.
type row struct{ pgx.Rows }

func (r row) Scan(dest ...any) error {
	defer r.Close()
	if !r.Next() {
		return cmp.Or(r.Err(), pgx.ErrNoRows)
	}
	return r.Rows.Scan(dest...)
}

// field describes a column, for which the driver reports the name of its type, or the OID of a type
// that is not registered with pgx.
func field(m *pgtype.Map, c *sql.ColumnType) pgconn.FieldDescription {
	f := pgconn.FieldDescription{Name: c.Name(), Format: pgtype.TextFormatCode}
	name := c.DatabaseTypeName()
	if t, ok := m.TypeForName(strings.ToLower(name)); ok {
		f.DataTypeOID = t.OID
	} else if t, ok := m.TypeForName(name); ok {
		f.DataTypeOID = t.OID
	} else if n, err := strconv.ParseUint(name, 10, 32); err == nil {
		f.DataTypeOID = uint32(n)
	}
	if decodedByDriver[f.DataTypeOID] {
		f.Format = pgtype.BinaryFormatCode
	}
	return f
}

// decodedByDriver lists the types that the driver returns as Go values, while it returns the others
// as text.
var decodedByDriver = map[uint32]bool{
	pgtype.BoolOID: true, pgtype.ByteaOID: true,
	pgtype.Int2OID: true, pgtype.Int4OID: true, pgtype.Int8OID: true,
	pgtype.Float4OID: true, pgtype.Float8OID: true,
	pgtype.OIDOID: true, pgtype.XIDOID: true, pgtype.CIDOID: true,
	pgtype.DateOID: true, pgtype.TimestampOID: true, pgtype.TimestamptzOID: true,
}

// wire encodes the driver's value in the field's format, in which nil stands for NULL.
func wire(m *pgtype.Map, f pgconn.FieldDescription, v any) ([]byte, error) {
	binary := f.Format == pgtype.BinaryFormatCode
	switch text := v.(type) {
	case nil:
		return nil, nil
	case string:
		if !binary {
			return []byte(text), nil
		}
		v = infinite(f.DataTypeOID, text)
	case []byte:
		if !binary { // json and xml; database/sql has copied it
			return text, nil
		}
	}
	return m.Encode(f.DataTypeOID, f.Format, v, nil) // binary, or a column of unknown type
}

// infinite returns the infinite date or time, for which the driver has no Go value.
func infinite(oid uint32, text string) any {
	end := pgtype.Infinity
	if strings.HasPrefix(text, "-") {
		end = pgtype.NegativeInfinity
	}
	switch oid {
	case pgtype.DateOID:
		return pgtype.Date{InfinityModifier: end, Valid: true}
	case pgtype.TimestampOID:
		return pgtype.Timestamp{InfinityModifier: end, Valid: true}
	}
	return pgtype.Timestamptz{InfinityModifier: end, Valid: true}
}
