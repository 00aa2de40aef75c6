package fencing

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"

	"github.com/pglock/pglock-go/internal/errs"
)

const (
	checkAllSQL = "SELECT g.name, g.token, c.is_current, c.newest, c.isolation " +
		"FROM jsonb_to_recordset($1::text::jsonb) AS g (name text, token bigint) CROSS JOIN LATERAL pglock.check_fence(g.name, g.token) AS c " +
		"ORDER BY c.is_current, g.name LIMIT 1" // the first one that is refused, after all are checked
	bindAllSQL = "SELECT pglock.bind(g.name, g.token) FROM jsonb_to_recordset($1::text::jsonb) AS g (name text, token bigint)"
)

// CheckAll is Check for several grants, in one round trip. It succeeds if all of them are current, and
// keeps all of them current until tx ends. A *StaleError has one that is not.
//
// The errors are those of Check. The error is ErrInvalidFence also if there are no fences, or if they
// are of several schemas.
func CheckAll(ctx context.Context, tx Tx, fences ...Fence) error {
	schemaName, arg, err := checkAllArgs(tx, fences)
	if err != nil {
		return err
	}
	var f Fence
	var current bool
	var newest Token
	var isolation string
	err = tx.QueryRow(ctx, render(checkAllSQL, schemaName), arg).Scan(&f.Name, &f.Token, &current, &newest, &isolation)
	if err != nil {
		return explainCall(schemaName, fmt.Sprintf("check %q and %d more", fences[0], len(fences)-1), err)
	}
	return checkResult(f, current, newest, isolation)
}

// BindAll is Bind for several grants, in one round trip: see Bind. The errors are those of CheckAll. A
// refusal of one grant aborts tx.
func BindAll(ctx context.Context, tx Tx, fences ...Fence) error {
	schemaName, arg, err := checkAllArgs(tx, fences)
	if err != nil {
		return err
	}
	_, err = tx.Exec(ctx, render(bindAllSQL, schemaName), arg)
	return explainCall(schemaName, fmt.Sprintf("bind %q and %d more", fences[0], len(fences)-1), err)
}

// checkAllArgs returns the schema of the fences, and the fences as JSON.
func checkAllArgs(tx Tx, fences []Fence) (schemaName, arg string, err error) {
	if len(fences) == 0 {
		return "", "", errs.Errorf("%w: there is none: must be at least one", ErrInvalidFence)
	}
	type row struct {
		Name  string `json:"name"`
		Token Token  `json:"token"`
	}
	rows := make([]row, len(fences))
	for i, f := range fences {
		if err := checkArgs(tx, f); err != nil {
			return "", "", err
		}
		if schemaName = cmp.Or(schemaName, f.schemaName()); f.schemaName() != schemaName {
			return "", "", errs.Errorf("%w: %q and %q are of different schemas", ErrInvalidFence, fences[0], f)
		}
		rows[i] = row{f.Name, f.Token}
	}
	text, err := json.Marshal(rows)
	if err != nil {
		return "", "", errs.Errorf("%w: %w", ErrInvalidFence, err)
	}
	return schemaName, string(text), nil
}
