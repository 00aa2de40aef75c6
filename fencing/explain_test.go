package fencing_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglock/pglock-go/fencing"
)

// foreign is an error of another driver.
type foreign string

func (e foreign) Error() string    { return "foreign " + string(e) }
func (e foreign) SQLState() string { return string(e) }

func TestExplain(t *testing.T) {
	t.Parallel()
	other := errors.New("other")
	server := &pgconn.PgError{Code: "PGL01", Detail: `{"resource": "n", "token": 3, "current": 4}`}
	wrapped := fmt.Errorf("orm: %w", server)
	for _, same := range []error{nil, other, foreign("23505"), &pgconn.PgError{Code: "40001"}} {
		if err := fencing.Explain(same); err != same { //nolint:errorlint // the same value is promised
			t.Errorf("%v became %v", same, err)
		}
	}
	err := fencing.Explain(wrapped)
	var stale *fencing.StaleError
	var pg *pgconn.PgError
	if !errors.As(err, &stale) || *stale != (fencing.StaleError{Resource: "n", Token: 3, Current: 4}) || !errors.As(err, &pg) || !errors.Is(err, wrapped) {
		t.Errorf("%v", err)
	}
	if again := fencing.Explain(err); again != err { //nolint:errorlint // the same value is promised
		t.Errorf("explained again: %v", again)
	}
	for code, sentinel := range map[string]error{
		"PGL01": fencing.ErrStale, "PGL02": fencing.ErrUnfenced, "PGL03": fencing.ErrOtherLock, "PGL04": fencing.ErrNoTable,
		"PGL05": fencing.ErrColumn, "PGL06": fencing.ErrProtected, "PGL07": fencing.ErrInvalidOption, "PGL08": fencing.ErrInvalidFence,
		"25P03": fencing.ErrPaused,
	} {
		for _, err := range []error{foreign(code), &pgconn.PgError{Code: code, Detail: "not ours"}} {
			got := fencing.Explain(fmt.Errorf("x: %w", err))
			if !errors.Is(got, sentinel) || !errors.Is(got, err) {
				t.Errorf("%v: %v", err, got)
			}
			if again := fencing.Explain(got); again != got { //nolint:errorlint // the same value is promised
				t.Errorf("explained again: %v", again)
			}
		}
	}
}

func TestErrorTexts(t *testing.T) {
	t.Parallel()
	for want, err := range map[string]error{
		`fencing: stale grant: "n" has no grant 3`:                                           &fencing.StaleError{Resource: "n", Token: 3},
		`fencing: stale grant: grant 3 of "n" has ended`:                                     &fencing.StaleError{Resource: "n", Token: 3, Current: 3},
		`fencing: stale grant: grant 3 of "n", where 4 is the newest`:                        &fencing.StaleError{Resource: "n", Token: 3, Current: 4},
		`fencing: the row belongs to another lock: "m" (: x (SQLSTATE PGL03))`:               fencing.Explain(&pgconn.PgError{Code: "PGL03", Message: "x", Detail: `{"resource": "m"}`}),
		`fencing: the row belongs to another lock: of no lock that is bound (foreign PGL03)`: fencing.Explain(foreign("PGL03")),
	} {
		if err.Error() != want {
			t.Errorf("%v, want %s", err, want)
		}
	}
}
