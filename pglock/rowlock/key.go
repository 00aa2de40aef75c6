package rowlock

import (
	"database/sql/driver"
	"encoding"
	"fmt"
	"reflect"
	"strings"

	"github.com/pglock/pglock-go/internal/errs"
	"github.com/pglock/pglock-go/internal/pgtx"
)

// keyArray returns the keys as the text form of an array. Unlike a []string, the server can parse
// it as an array of any type: of numbers, uuid, citext, an enum, a user's domain.
func keyArray[K any](keys []K) (string, error) {
	texts := make([]string, len(keys))
	for i, k := range keys {
		text, err := keyText(k)
		if err != nil {
			return "", err
		}
		texts[i] = text
	}
	return arrayText(texts), nil
}

var escapes = strings.NewReplacer(`"`, `\"`, `\`, `\\`)

func arrayText(items []string) string {
	quoted := make([]string, len(items))
	for i, item := range items {
		quoted[i] = `"` + escapes.Replace(item) + `"`
	}
	return "{" + strings.Join(quoted, ",") + "}"
}

// keyText returns the text form of a key.
func keyText(k any) (string, error) {
	v := reflect.ValueOf(k)
	if pgtx.IsNil(k) || !v.Comparable() { // in an interface, where the compiler does not see it
		return "", errs.InvalidOption("rowlock", "key %v of type %T: must be comparable, and neither nil nor NULL", k, k)
	}
	switch m := k.(type) {
	case driver.Valuer:
		held, err := m.Value()
		if _, again := held.(driver.Valuer); err != nil || again {
			return "", errs.InvalidOption("rowlock", "key of type %T has no value: %v", k, err)
		}
		return keyText(held)
	case encoding.TextMarshaler: // a time.Time too
		b, err := m.MarshalText()
		if err != nil {
			return "", errs.InvalidOption("rowlock", "key %v: %w", k, err)
		}
		return string(b), nil
	}
	switch {
	case v.Kind() == reflect.String:
		return v.String(), nil
	case v.CanInt(), v.CanUint():
		return fmt.Sprintf("%d", k), nil
	case v.Kind() == reflect.Array && v.Len() == 16 && v.Type().Elem().Kind() == reflect.Uint8:
		return fmt.Sprintf("%x", k), nil
	}
	return "", errs.InvalidOption("rowlock", "key type %T: use a string, an integer, a [16]byte, a driver.Valuer or an encoding.TextMarshaler", k)
}
