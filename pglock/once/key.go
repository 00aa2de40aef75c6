package once

import (
	"crypto/sha256"
	"encoding/hex"

	"github.com/pglock/pglock-go/internal/errs"
)

// MaxKey is the largest size of a key in bytes.
const MaxKey = 512

func checkKey(key string) error {
	if err := errs.CheckText(key, MaxKey); err != nil {
		return errs.Errorf("%w: %.64q: it %w", ErrInvalidKey, key, err)
	}
	return nil
}

// LockName returns the name of the lock that Do holds while fn runs: "once:" and the key. If that is
// too long for a lock's name, it is "once:sha256:" and the key's SHA-256 in hex.
func LockName(key string) string {
	if name := "once:" + key; len(name) <= errs.MaxName {
		return name
	}
	digest := sha256.Sum256([]byte(key))
	return "once:sha256:" + hex.EncodeToString(digest[:])
}

// digest returns what is stored of a fingerprint.
func digest(fingerprint []byte) []byte {
	d := sha256.Sum256(fingerprint)
	return d[:]
}
