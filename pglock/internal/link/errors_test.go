package link_test

import (
	"context"
	"errors"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglock/pglock-go/internal/errs"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/internal/schema"
	"github.com/pglock/pglock-go/pglock/internal/link"
)

// TestLimitsOnTimeAreTransient: a role's time limit that ended the statement or the connection may
// not apply the next time. If it ended the connection, the statement may have been applied.
func TestLimitsOnTimeAreTransient(t *testing.T) {
	t.Parallel()
	for code, ends := range map[string]bool{
		"25P03": true,  // idle_in_transaction_session_timeout
		"25P04": true,  // transaction_timeout
		"57P05": true,  // idle_session_timeout
		"57014": false, // statement_timeout
		"55P03": false, // lock_timeout
		"40001": false, // serialization_failure: also a first grant that pruning overtook
	} {
		err := &pgconn.PgError{Code: code}
		if !link.Transient(err) || link.MaybeApplied(err) != ends || link.ConnectionFailed(err) != ends {
			t.Errorf("%s: transient %v, may be applied %v, connection failed %v", code,
				link.Transient(err), link.MaybeApplied(err), link.ConnectionFailed(err))
		}
	}
}

// TestAFailureIsClassified: the errors of a server that can't be reached, of a schema that is
// missing and of a Store whose life has ended.
func TestAFailureIsClassified(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	missing := newStore(t, pool, "no such schema")
	if err := missing.Check(t.Context()); !errors.Is(err, schema.ErrMissing) {
		t.Errorf("a missing schema: %v", err)
	}
	s := newStore(t, pool, pgtest.Schema(t, pool))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := s.AcquireFast(ctx, one(request("n", "1", "h")))
	if err == nil || !link.Transient(err) || !errors.Is(s.Explain("acquire", err), errs.ErrUnavailable) {
		t.Errorf("a canceled statement: %v", err)
	}
}
