package rowlock_test

import (
	"math"
	"testing"
	"time"

	"github.com/pglock/pglock-go/pglock/rowlock"
)

// TestLongestTimeout: the longest duration that there is means for ever, more or less.
func TestLongestTimeout(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	if _, err := rowlock.ForUpdate[item](t.Context(), f.begin(), f.stock.Table, []string{"a"}, rowlock.WithTimeout(time.Duration(math.MaxInt64))); err != nil {
		t.Error(err)
	}
}
