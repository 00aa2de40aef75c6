package advisory

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"sync/atomic"

	"github.com/pglock/pglock-go/internal/errs"
)

// domain separates these keys from other uses of SHA-256. It is frozen, like all of NewKey:
// programs of different versions must agree on the key of a name.
const domain = "pglock.advisory.v1"

// Key identifies an advisory lock by a 64-bit number, which is 0 for the zero Key. Keys can be
// compared with ==.
type Key struct {
	id      int64
	invalid string // why it can't be locked; usually empty
}

// NewKey returns the key of a name: the first 64 bits of the SHA-256 of a fixed tag, the
// namespace and the name, each preceded by its length, so that different pairs have different
// input. The key is the same in every version of this package, and in SQL: SELECT
// pglock.advisory_key(namespace, name). Two names share a key with a probability of 2⁻⁶⁴; they
// would exclude each other, and nothing worse.
//
// Namespace and name must be valid UTF-8 without NUL, and not empty. Otherwise every call with
// the key fails with ErrInvalidOption.
func NewKey(namespace, name string) Key {
	h := sha256.New()
	for _, part := range []struct{ what, text string }{{"", domain}, {"namespace", namespace}, {"name", name}} {
		if err := errs.CheckText(part.text, 0); err != nil {
			return Key{invalid: fmt.Sprintf("the %s %v", part.what, err)}
		}
		var size [8]byte
		binary.BigEndian.PutUint64(size[:], uint64(len(part.text)))
		h.Write(size[:])
		h.Write([]byte(part.text))
	}
	k := Key{id: int64(binary.BigEndian.Uint64(h.Sum(nil)))}
	if old := k.place().Load(); old == nil || old.id != k.id {
		k.place().Store(&rememberedName{k.id, namespace, name})
	}
	return k
}

// KeyFromInt64 returns the key that pg_advisory_lock(id) locks.
func KeyFromInt64(id int64) Key { return Key{id: id} }

// Int64 returns the number that identifies the lock.
func (k Key) Int64() int64 { return k.id }

// PgLocks returns the columns classid, objid and objsubid of the key in pg_locks, whose locktype
// is advisory.
func (k Key) PgLocks() (classid, objid uint32, objsubid int16) {
	return uint32(k.id >> 32), uint32(k.id), 1
}

// String returns the key as the argument of pg_advisory_lock.
func (k Key) String() string {
	if k.invalid != "" {
		return "invalid key"
	}
	return fmt.Sprintf("(%d)", k.id)
}

// remembered has the last names that NewKey was called with, for messages. A key can't carry its
// name, because keys of the same number must be equal. Each name has one place, which it shares
// with others.
var remembered [1 << 12]atomic.Pointer[rememberedName]

type rememberedName struct {
	id              int64
	namespace, name string
}

func (k Key) place() *atomic.Pointer[rememberedName] {
	return &remembered[uint64(k.id)%uint64(len(remembered))]
}

// names returns what NewKey was called with. Both are empty if it is not remembered, or the key was
// made from a number.
func (k Key) names() (namespace, name string) {
	if r := k.place().Load(); r != nil && r.id == k.id && k.invalid == "" {
		return r.namespace, r.name
	}
	return "", ""
}

// describe returns the key, after its name if that is known.
func (k Key) describe() string {
	if _, name := k.names(); name != "" {
		return fmt.Sprintf("%q %v", name, k)
	}
	return k.String()
}
