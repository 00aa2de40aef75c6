package advisory_test

import (
	"errors"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/advisory"
)

// TestNilPointerIsErrTx: a nil *pgxpool.Tx in a pgx.Tx is not equal to nil.
func TestNilPointerIsErrTx(t *testing.T) {
	t.Parallel()
	var none *pgxpool.Tx
	var tx pgx.Tx = none
	key := advisory.NewKey("nil", t.Name())
	for what, err := range map[string]error{
		"Lock": advisory.Lock(t.Context(), tx, key), "TryLock": advisory.TryLock(t.Context(), tx, key), "LockAll": advisory.LockAll(t.Context(), tx, key),
	} {
		if !errors.Is(err, advisory.ErrTx) {
			t.Errorf("%s: %v", what, err)
		}
	}
}
