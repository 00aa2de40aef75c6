package once

import (
	"crypto/sha256"
	"encoding/hex"
	"time"

	"github.com/pglock/pglock-go/fencing"
	"github.com/pglock/pglock-go/internal/errs"
	"github.com/pglock/pglock-go/pglock/internal/records"
)

func checkKey(key string) error {
	if err := errs.CheckText(key, errs.MaxName); err != nil {
		return errs.Errorf("%w: %.64q: it %w", ErrInvalidKey, key, err)
	}
	return nil
}

// LockName returns the name of the lock that Do holds while fn runs: "once:" and the key. If that
// is too long for a lock's name, it is "once:sha256:" and the key's SHA-256 in hex.
func LockName(key string) string {
	if name := "once:" + key; len(name) <= errs.MaxName {
		return name
	}
	digest := sha256.Sum256([]byte(key))
	return "once:sha256:" + hex.EncodeToString(digest[:])
}

// callOf returns a call with a key. Of the fingerprint, its digest is stored.
func callOf(cfg config, key string, fingerprint []byte) records.Call {
	digest := sha256.Sum256(fingerprint)
	return records.Call{Key: key, Digest: digest[:], Retention: cfg.retention}
}

// answer returns what the record of a key says to a repeated request.
func answer(r records.Record) ([]byte, error) {
	switch {
	case !r.Same:
		return nil, errs.Errorf("%w: key %.64q: its fingerprint differs, and the first call may have had its effect: a new key is for a new effect", ErrMismatch, r.Key)
	case r.State == records.Failed:
		return nil, &FailedError{Key: r.Key, Text: string(r.Result)}
	case r.State == records.Done && r.Result == nil:
		return nil, errs.Errorf("%w: key %.64q", ErrNoResult, r.Key)
	case r.State == records.Done:
		return r.Result, nil
	}
	return nil, &UnknownError{Started: startedBy(r)}
}

func startedBy(r records.Record) Started { return Started{r.Key, r.Token, r.Holder, r.StartedAt} }

// Started is an effect that an earlier attempt has begun, and whose outcome is unknown.
type Started struct {
	Key       string
	Token     fencing.Token // of the attempt's lease
	Holder    string        // of the attempt's lease
	StartedAt time.Time     // by the server's clock
}
