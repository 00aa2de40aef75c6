package rowlock

import (
	"reflect"
	"strings"
	"unicode"
)

// columnsOf returns the columns for the exported fields of a struct, as pgx.RowToStructByName
// matches them: by the db tag, or else by the field's name in snake case (UserID is user_id). The
// tag "-" excludes a field. The fields of embedded structs are included.
func columnsOf[T any]() ([]string, error) {
	typ := reflect.TypeFor[T]()
	if typ.Kind() != reflect.Struct {
		return nil, invalidOption("row type %v: must be a struct", typ)
	}
	names := columnNames(typ, nil)
	if len(names) == 0 {
		return nil, invalidOption("row type %v: must have exported fields", typ)
	}
	seen := map[string]bool{}
	for _, n := range names {
		if err := checkName("column", n); err != nil {
			return nil, err
		}
		if seen[n] {
			return nil, invalidOption("row type %v has two fields for column %q", typ, n)
		}
		seen[n] = true
	}
	return names, nil
}

func columnNames(typ reflect.Type, names []string) []string {
	for i := range typ.NumField() {
		f := typ.Field(i)
		if f.Anonymous && f.Type.Kind() == reflect.Struct {
			names = columnNames(f.Type, names)
			continue
		}
		tag, tagged := f.Tag.Lookup("db")
		tag, _, _ = strings.Cut(tag, ",")
		switch {
		case !f.IsExported() || tag == "-":
		case tagged:
			names = append(names, tag)
		default:
			names = append(names, snakeCase(f.Name))
		}
	}
	return names
}

// snakeCase inserts an underscore where a word begins: before an upper-case letter that follows a
// lower-case letter or a digit, and before the last of several upper-case letters if a lower-case
// letter follows.
func snakeCase(name string) string {
	runes := []rune(name)
	var b strings.Builder
	for i, r := range runes {
		begins := i > 0 && unicode.IsUpper(r) && runes[i-1] != '_' &&
			(!unicode.IsUpper(runes[i-1]) || i+1 < len(runes) && unicode.IsLower(runes[i+1]))
		if begins {
			b.WriteByte('_')
		}
		b.WriteRune(unicode.ToLower(r))
	}
	return b.String()
}
