package once

import (
	"encoding/json"
	"errors"

	"github.com/pglock/pglock-go/internal/errs"
)

// MaxResult is the largest size of a stored result in bytes.
const MaxResult = 1 << 20

// encode returns the stored form of a result: the bytes themselves of a []byte, and JSON of
// anything else. It is never nil without an error, because a null result in the table means that
// there is none.
func encode(v any) ([]byte, error) {
	data, raw := v.([]byte)
	if !raw {
		var err error
		if data, err = json.Marshal(v); err != nil {
			return nil, err
		}
	}
	if len(data) > MaxResult {
		return nil, errs.Errorf("%w: %d bytes: must be at most %d", ErrResultTooLarge, len(data), MaxResult)
	}
	return append([]byte{}, data...), nil
}

// decode is the reverse of encode. The first call decodes its own result as well, so that it
// returns what each repeated call returns.
func decode[T any](key string, data []byte) (v T, err error) {
	if raw, ok := any(&v).(*[]byte); ok {
		*raw = data
		return v, nil
	}
	if err := json.Unmarshal(data, &v); err != nil {
		var zero T
		return zero, errs.Errorf("once: key %.64q: the stored result does not fit %T: %w", key, v, err)
	}
	return v, nil
}

// encoder turns a function with a result of type T into one with the stored form of the result. It
// keeps the last result, for a caller whose result can't be stored.
type encoder[T any] struct {
	key  string
	last T
}

func (e *encoder[T]) encode(v T, err error) ([]byte, error) {
	if err != nil {
		return nil, err
	}
	e.last = v
	data, err := encode(v)
	return data, mark(err, noResult)
}

func (e *encoder[T]) answer(data []byte, err error) (T, error) {
	if errors.Is(err, ErrNoResult) || errors.Is(err, ErrNotRecorded) {
		return e.last, err // the zero value in a repeated call
	}
	if err != nil {
		var zero T
		return zero, err
	}
	return decode[T](e.key, data)
}
