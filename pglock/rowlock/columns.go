package rowlock

import (
	"reflect"
	"slices"
	"strings"
	"unicode"

	"github.com/jackc/pgx/v5"
)

// column is a column and the field of T that it goes to, nil if it is not known.
type column struct {
	name  string
	field []int
}

// columnsOf returns the columns for the exported fields of a struct, as
// pgx.RowToStructByName will look for them: named by the db tag, or else by the field's name
// in snake case (UserID is user_id); "-" leaves a field out; embedded structs are part of it.
func columnsOf[T any]() ([]column, error) {
	typ := reflect.TypeFor[T]()
	if typ.Kind() != reflect.Struct {
		return nil, invalidOption("rows of type %v, which is no struct", typ)
	}
	found := fieldsOf(typ, nil, nil)
	if len(found) == 0 {
		return nil, invalidOption("rows of type %v, which has no exported fields", typ)
	}
	seen := map[string]bool{}
	for _, c := range found {
		if err := checkName("column", c.name); err != nil {
			return nil, err
		}
		if seen[c.name] {
			return nil, invalidOption("two fields of %v are for column %q", typ, c.name)
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

// snakeCase puts an underscore where a word begins: before a capital that follows a small
// letter or digit, and before the last of several capitals if a small letter follows.
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

// shape is how rows become values of T.
type shape[T any] struct {
	names []string
	row   pgx.RowToFunc[T]
	key   []int // the field of the key, nil if it is not known
}

// shapeOf takes the columns given, or those of T. With key, they must contain it.
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
			return shape[T]{}, invalidOption("%v has no field for column %q", reflect.TypeFor[T](), n)
		}
	}
	for _, c := range own {
		if c.name == key {
			s.key = c.field
		}
	}
	if key != "" && (s.key == nil || !slices.Contains(s.names, key)) {
		return shape[T]{}, invalidOption("%v has no field for the key column %q: name it with a db tag", reflect.TypeFor[T](), key)
	}
	return s, nil
}

// sameName reports whether pgx may take a column for the field of another: it looks past case and
// underscores.
func sameName(a, b string) bool {
	return strings.EqualFold(strings.ReplaceAll(a, "_", ""), strings.ReplaceAll(b, "_", ""))
}

// repeated reports whether two rows that follow each other have the same key.
func (s shape[T]) repeated(rows []T) bool {
	for i := 1; i < len(rows); i++ {
		a, b := reflect.ValueOf(rows[i-1]).FieldByIndex(s.key), reflect.ValueOf(rows[i]).FieldByIndex(s.key)
		if reflect.DeepEqual(a.Interface(), b.Interface()) {
			return true
		}
	}
	return false
}
