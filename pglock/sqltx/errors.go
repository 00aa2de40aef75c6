package sqltx

import (
	"database/sql"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// ErrDriver: the transaction is not one of pgx's stdlib driver, so nothing was done.
var ErrDriver = errors.New("sqltx: the *sql.Tx is not on pgx's stdlib driver (github.com/jackc/pgx/v5/stdlib)")

// errNil is what a *Tx around nothing says.
var errNil = fmt.Errorf("sqltx: the transaction is nil: %w", pgx.ErrTxClosed)

// translated adds what pgx would call the error.
func translated(err error) error {
	if errors.Is(err, sql.ErrTxDone) {
		return fmt.Errorf("%w: %w", pgx.ErrTxClosed, err)
	}
	return err
}
