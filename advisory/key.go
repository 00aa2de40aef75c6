package advisory

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"strings"
	"unicode/utf8"
)

// domain keeps these keys apart from any other use of SHA-256. It is frozen, as is
// all of NewKey: programs of different versions must agree on a name's key.
const domain = "pglock.advisory.v1"

// Key is what PostgreSQL locks: a 64-bit number, or a pair of 32-bit numbers. The two
// are different spaces: the number 1 and the pair (0, 1) do not exclude each other.
// Keys are comparable. The zero Key is the number 0.
type Key struct {
	id      int64 // of a pair, the first number is the upper half
	paired  bool
	invalid string // why it can't be used
}

// NewKey returns the key of a name: the first 64 bits of the SHA-256 of a fixed tag,
// the namespace and the name, each with its length in front, so that no two pairs
// run into each other. It is the same in every version of this package, and in
// SQL: SELECT pglock.advisory_key(namespace, name). Two names share a key with a
// probability of 2⁻⁶⁴; they would exclude each other, no more.
//
// Namespace and name are UTF-8 without NUL and not empty: otherwise every call with
// the key fails with ErrInvalidKey.
func NewKey(namespace, name string) Key {
	for _, part := range []struct{ what, text string }{{"namespace", namespace}, {"name", name}} {
		switch {
		case part.text == "":
			return Key{invalid: "its " + part.what + " is empty"}
		case !utf8.ValidString(part.text) || strings.ContainsRune(part.text, 0):
			return Key{invalid: "its " + part.what + " is not UTF-8 without NUL"}
		}
	}
	h := sha256.New()
	for _, part := range []string{domain, namespace, name} {
		var size [8]byte
		binary.BigEndian.PutUint64(size[:], uint64(len(part)))
		h.Write(size[:])
		h.Write([]byte(part))
	}
	return Key{id: int64(binary.BigEndian.Uint64(h.Sum(nil)))}
}

// KeyFromInt64 returns the key that other programs lock as pg_advisory_lock(id).
func KeyFromInt64(id int64) Key { return Key{id: id} }

// KeyFromInt32s returns the key that other programs lock as pg_advisory_lock(a, b).
func KeyFromInt32s(a, b int32) Key {
	return Key{id: int64(a)<<32 | int64(uint32(b)), paired: true}
}

// Int64 returns the number, and false for a pair.
func (k Key) Int64() (id int64, ok bool) { return k.id, !k.paired }

// Int32s returns the pair, and false for a number.
func (k Key) Int32s() (a, b int32, ok bool) { return int32(k.id >> 32), int32(k.id), k.paired }

// PgLocks returns how pg_locks shows the key: the columns classid, objid and objsubid
// of a row whose locktype is advisory.
func (k Key) PgLocks() (classid, objid uint32, objsubid int16) {
	objsubid = 1
	if k.paired {
		objsubid = 2
	}
	return uint32(k.id >> 32), uint32(k.id), objsubid
}

// fromPgLocks is the reverse of PgLocks.
func fromPgLocks(classid, objid uint32, objsubid int16) Key {
	return Key{id: int64(uint64(classid)<<32 | uint64(objid)), paired: objsubid == 2}
}

// String returns the key as the arguments of pg_advisory_lock.
func (k Key) String() string {
	switch a, b, paired := k.Int32s(); {
	case k.invalid != "":
		return "invalid key"
	case paired:
		return fmt.Sprintf("(%d, %d)", a, b)
	}
	return fmt.Sprintf("(%d)", k.id)
}

// check returns an error that wraps ErrInvalidKey if the key can't be locked.
func (k Key) check() error {
	if k.invalid == "" {
		return nil
	}
	return fmt.Errorf("%w: %s", ErrInvalidKey, k.invalid)
}

// compare orders keys: the order in which several are locked.
func (k Key) compare(other Key) int {
	if k.paired != other.paired {
		if other.paired {
			return -1
		}
		return 1
	}
	return cmp.Compare(k.id, other.id)
}
