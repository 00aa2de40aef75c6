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
)

// keyTexts returns the keys as PostgreSQL reads them, each once.
func keyTexts[K comparable](keys []K) ([]string, error) {
	texts, seen := make([]string, len(keys)), make(map[string]int, len(keys))
	for i, k := range keys {
		text, err := keyText(k)
		if err != nil {
			return nil, err
		}
		if !utf8.ValidString(text) || strings.ContainsRune(text, 0) {
			return nil, invalidOption("key %q is not UTF-8 without NUL", text)
		}
		if first, twice := seen[text]; twice {
			return nil, invalidOption("key %v comes twice, at %d and %d", k, first, i)
		}
		texts[i], seen[text] = text, i
	}
	return texts, nil
}

// keyText is the text form of a key. The server reads it as the column's type, which we need
// not know: a number, a uuid, a citext, an enum, a domain of the user's.
func keyText(k any) (string, error) {
	if isNil(k) {
		return "", invalidOption("a key is nil")
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
	return "", invalidOption("a key of type %T: use a string, an integer, a [16]byte, a driver.Valuer or an encoding.TextMarshaler", k)
}

// isNil reports whether v is nil, or a pointer that is.
func isNil(v any) bool {
	p := reflect.ValueOf(v)
	return v == nil || p.Kind() == reflect.Pointer && p.IsNil()
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
	return "", invalidOption("a key of type %T with a value of type %T", k, v)
}

func uuidText(v reflect.Value) string {
	b := make([]byte, 16)
	for i := range b {
		b[i] = byte(v.Index(i).Uint())
	}
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}

// arrayText is the text form of an array. As a text, unlike as a []string, it can be of any type.
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
