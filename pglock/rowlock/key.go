package rowlock

import (
	"database/sql/driver"
	"encoding"
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/pglock/pglock-go/internal/pgtx"
)

// keyTexts returns the keys as text. It refuses a key that is passed twice.
func keyTexts[K comparable](keys []K) ([]string, error) {
	texts, seen := make([]string, len(keys)), make(map[string]int, len(keys))
	for i, k := range keys {
		text, err := keyText(k)
		if err != nil {
			return nil, err
		}
		if !utf8.ValidString(text) || strings.ContainsRune(text, 0) {
			return nil, invalidOption("key %q: must be valid UTF-8 without NUL", text)
		}
		if first, twice := seen[text]; twice {
			return nil, invalidOption("key %v at %d repeats the key at %d: keys must be distinct", k, i, first)
		}
		texts[i], seen[text] = text, i
	}
	return texts, nil
}

// keyText returns the text form of a key. The server parses it as the column's type, which may be
// any: a number, a uuid, a citext, an enum, a user's domain.
func keyText(k any) (string, error) {
	if pgtx.IsNil(k) {
		return "", invalidOption("a key is nil")
	}
	if !reflect.ValueOf(k).Comparable() { // in an interface; results are found by key
		return "", invalidOption("key type %T: must be comparable", k)
	}
	switch k := k.(type) {
	case string:
		return k, nil
	case time.Time:
		return k.Format(time.RFC3339Nano), nil
	case driver.Valuer:
		return valueText(k)
	case encoding.TextMarshaler:
		text, err := k.MarshalText()
		if err != nil {
			return "", invalidOption("key %v: %w", k, err)
		}
		return string(text), nil
	}
	switch v := reflect.ValueOf(k); v.Kind() {
	case reflect.String:
		return v.String(), nil
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return strconv.FormatInt(v.Int(), 10), nil
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return strconv.FormatUint(v.Uint(), 10), nil
	case reflect.Array:
		if v.Len() == 16 && v.Type().Elem().Kind() == reflect.Uint8 {
			return uuidText(v), nil
		}
	}
	return "", invalidOption("key type %T: use a string, an integer, a [16]byte, a driver.Valuer or an encoding.TextMarshaler", k)
}

func valueText(k driver.Valuer) (string, error) {
	v, err := k.Value()
	if err != nil {
		return "", invalidOption("key %v: %w", k, err)
	}
	switch v := v.(type) {
	case string:
		return v, nil
	case int64:
		return strconv.FormatInt(v, 10), nil
	case time.Time:
		return v.Format(time.RFC3339Nano), nil
	case nil:
		return "", invalidOption("a key is NULL")
	}
	return "", invalidOption("key type %T has a value of type %T: must be a string, int64 or time.Time", k, v)
}

func uuidText(v reflect.Value) string {
	b := make([]byte, 16)
	for i := range b {
		b[i] = byte(v.Index(i).Uint())
	}
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}

// arrayText returns the text form of an array. Unlike a []string, the server can parse it as an
// array of any type.
func arrayText(items []string) string {
	var b strings.Builder
	b.WriteByte('{')
	for i, item := range items {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteByte('"')
		for j := range len(item) {
			if item[j] == '"' || item[j] == '\\' {
				b.WriteByte('\\')
			}
			b.WriteByte(item[j])
		}
		b.WriteByte('"')
	}
	b.WriteByte('}')
	return b.String()
}
