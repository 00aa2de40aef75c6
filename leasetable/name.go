package leasetable

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// maxName is the longest name of a lock, in bytes.
const maxName = 512

// CheckName returns an error that wraps ErrInvalidName unless name can be a lock's: 1 to
// 512 bytes of UTF-8 without NUL.
func CheckName(name string) error { return checkName(name) }

func checkName(name string) error {
	switch {
	case name == "":
		return fmt.Errorf("%w: it is empty", ErrInvalidName)
	case len(name) > maxName:
		return fmt.Errorf("%w: %d bytes, the limit is %d", ErrInvalidName, len(name), maxName)
	case !storable(name):
		return fmt.Errorf("%w: %q is not UTF-8 without NUL", ErrInvalidName, name)
	}
	return nil
}

// storable reports whether PostgreSQL keeps s in a text column as it is.
func storable(s string) bool { return utf8.ValidString(s) && !strings.ContainsRune(s, 0) }
