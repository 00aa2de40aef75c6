package link_test

import (
	"context"
	"errors"
	"testing"

	"github.com/pglock/pglock-go/internal/errs"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/internal/schema"
	"github.com/pglock/pglock-go/pglock/internal/link"
)

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
