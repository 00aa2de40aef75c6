package pglock_test

import (
	"context"
	"math"
	"strings"
	"testing"

	"github.com/pglock/pglock-go/pglock"
)

// TestP04_NoTakeoverDuringAGuardedTransaction sends the acquire statements while a guard holds the
// previous grant, whose row is free already.
func TestP04_NoTakeoverDuringAGuardedTransaction(t *testing.T) {
	t.Parallel()
	const request = "5a1f0e2c-7a34-4a0e-8f77-0f6b2a3a4d5e"
	alone := []any{"n", "h", request, "{}", int64(1e6), int64(math.MaxInt64)}
	many := []any{[]string{"n"}, []string{"h"}, []string{request}, []string{"{}"}, []int64{1e6}, []int64{math.MaxInt64}}
	weakly := strings.NewReplacer("FOR UPDATE SKIP", "FOR NO KEY UPDATE SKIP", "FOR UPDATE OF", "FOR NO KEY UPDATE OF")
	for name, tc := range map[string]struct {
		sql    string
		args   []any
		passes bool
	}{
		"fast path":               {pglock.AcquireFastSQL, alone, false},
		"full statement":          {pglock.AcquireFullSQL, many, false},
		"fast path, control":      {weakly.Replace(pglock.AcquireFastSQL), alone, true},
		"full statement, control": {weakly.Replace(pglock.AcquireFullSQL), many, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			l := try(t, f.open(), "n")
			tx, err := f.pool.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = tx.Rollback(context.Background()) }()
			if err := l.Guard(t.Context(), tx); err != nil {
				t.Fatal(err)
			}
			release(t, l)
			f.sql(tc.sql, tc.args...)
			token := value[int64](f, "SELECT token FROM pglock.distributed_locks WHERE name = 'n'")
			if passed := token != int64(l.Token()); passed != tc.passes {
				t.Errorf("a takeover during the guarded transaction went through: %v", passed)
			}
		})
	}
}
