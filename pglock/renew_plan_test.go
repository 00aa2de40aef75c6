package pglock

import (
	"testing"
	"time"

	"github.com/pglock/pglock-go/internal/timing"
)

// TestRenewalsFitIntoTheTTL: with the default options a second attempt fits between the time when a
// lease is due and its deadline, however long renewals take.
func TestRenewalsFitIntoTheTTL(t *testing.T) {
	t.Parallel()
	for ttl := time.Second; ttl < 10*time.Minute; ttl += ttl / 3 {
		cfg := leaseConfig{ttl: ttl}
		if err := cfg.check(); err != nil {
			t.Fatal(err)
		}
		trusted := cfg.ttl - cfg.margin
		last := time.Duration(0)
		for latency := time.Duration(0); latency < 2*trusted; latency += trusted / 20 {
			patience := renewPatience(trusted, latency)
			if patience < last || patience > timing.StatementBound || trusted/6 < timing.StatementBound && patience < trusted/6 ||
				cfg.renewEvery+patience >= trusted {
				t.Errorf("TTL %v, renewals take %v: due after %v, overdue after %v, trusted for %v", ttl, latency, cfg.renewEvery, patience, trusted)
			}
			last = patience
		}
	}
	for range 1000 {
		if d := jittered(time.Second); d > time.Second || d < 900*time.Millisecond {
			t.Fatalf("a second, jittered, is %v", d)
		}
	}
}
