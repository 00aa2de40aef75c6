package leasetable

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// maxName is the longest name of a lock, in bytes.
const maxName = 512

// checkName returns an error that wraps ErrInvalidName unless the table keeps
// name as it is.
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
