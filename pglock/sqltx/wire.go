package sqltx

import (
	"database/sql"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
)

// field describes a column. The driver reports the name of its type, or the OID of a type that is
// not registered with pgx.
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

// decodedByDriver lists the types that the driver returns as Go values. It returns the others as
// text.
var decodedByDriver = map[uint32]bool{
	pgtype.BoolOID: true, pgtype.ByteaOID: true,
	pgtype.Int2OID: true, pgtype.Int4OID: true, pgtype.Int8OID: true,
	pgtype.Float4OID: true, pgtype.Float8OID: true,
	pgtype.OIDOID: true, pgtype.XIDOID: true, pgtype.CIDOID: true,
	pgtype.DateOID: true, pgtype.TimestampOID: true, pgtype.TimestamptzOID: true,
}

// wire encodes the driver's value in the field's format. NULL is nil.
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
