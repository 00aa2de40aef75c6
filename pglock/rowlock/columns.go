package rowlock

import (
	"reflect"
	"slices"
	"strings"
	"unicode"

	"github.com/jackc/pgx/v5"
)

// column is a column and the index of its field in T.
type column struct {
	name  string
	field []int
}

// columnsOf returns the columns for the exported fields of a struct, as pgx.RowToStructByName
// matches them: by the db tag, or else by the field's name in snake case (UserID is user_id). The
// tag "-" excludes a field. The fields of embedded structs are included.
func columnsOf[T any]() ([]column, error) {
	typ := reflect.TypeFor[T]()
	if typ.Kind() != reflect.Struct {
		return nil, invalidOption("row type %v: must be a struct", typ)
	}
	found := fieldsOf(typ, nil, nil)
	if len(found) == 0 {
		return nil, invalidOption("row type %v: must have exported fields", typ)
	}
	seen := map[string]bool{}
	for _, c := range found {
		if err := checkName("column", c.name); err != nil {
			return nil, err
		}
		if seen[c.name] {
			return nil, invalidOption("row type %v has two fields for column %q", typ, c.name)
		}
		seen[c.name] = true
	}
	return found, nil
}

func fieldsOf(typ reflect.Type, path []int, found []column) []column {
	for i := range typ.NumField() {
		f := typ.Field(i)
		at := append(append([]int{}, path...), i)
		if f.Anonymous && f.Type.Kind() == reflect.Struct {
			found = fieldsOf(f.Type, at, found)
			continue
		}
		tag, tagged := f.Tag.Lookup("db")
		tag, _, _ = strings.Cut(tag, ",")
		switch {
		case !f.IsExported() || tag == "-":
		case tagged:
			found = append(found, column{tag, at})
		default:
			found = append(found, column{snakeCase(f.Name), at})
		}
	}
	return found
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

// shape maps rows to values of T.
type shape[T any] struct {
	names []string
	row   pgx.RowToFunc[T]
	key   []int // index of the key's field; nil if shapeOf was not given a key
}

// shapeOf returns the shape for the given columns, or for those of T if given is nil. If key is
// not empty, the columns must include it.
func shapeOf[T any](given []string, key string) (shape[T], error) {
	own, err := columnsOf[T]()
	if err != nil {
		return shape[T]{}, err
	}
	s := shape[T]{names: given, row: pgx.RowToStructByNameLax[T]}
	if given == nil {
		s.row = pgx.RowToStructByName[T]
		for _, c := range own {
			s.names = append(s.names, c.name)
		}
	}
	for _, n := range given {
		if !slices.ContainsFunc(own, func(c column) bool { return sameName(c.name, n) }) {
			return shape[T]{}, invalidOption("row type %v has no field for column %q", reflect.TypeFor[T](), n)
		}
	}
	for _, c := range own {
		if c.name == key {
			s.key = c.field
		}
	}
	if key != "" && (s.key == nil || !slices.Contains(s.names, key)) {
		return shape[T]{}, invalidOption("row type %v has no field for the key column %q: name it with a db tag", reflect.TypeFor[T](), key)
	}
	return s, nil
}

// sameName reports whether pgx may match a column with the field of another: it ignores case and
// underscores.
func sameName(a, b string) bool {
	return strings.EqualFold(strings.ReplaceAll(a, "_", ""), strings.ReplaceAll(b, "_", ""))
}

// repeated reports whether two consecutive rows have the same key.
func (s shape[T]) repeated(rows []T) bool {
	for i := 1; i < len(rows); i++ {
		a, b := reflect.ValueOf(rows[i-1]).FieldByIndex(s.key), reflect.ValueOf(rows[i]).FieldByIndex(s.key)
		if reflect.DeepEqual(a.Interface(), b.Interface()) {
			return true
		}
	}
	return false
}
