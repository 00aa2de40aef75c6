package doctor_test

import (
	"testing"
	"time"

	"github.com/pglock/pglock-go/internal/locktest"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/internal/testserver"
	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/cmd/pglock/internal/doctor"
)

// TestHealthy: on a server with good settings each check is ok, for a role without any right but
// those of grant_user. Doctor draws no token and leaves no session.
func TestHealthy(t *testing.T) {
	t.Parallel()
	server := pgtest.Server(t, testserver.Options{Durable: true, Settings: map[string]string{"idle_in_transaction_session_timeout": "60s"}})
	p := patientAt(t, server.URL())
	client := locktest.ClientOn(t, p.admin, pglock.WithSchema(p.schema))
	if _, err := client.Acquire(t.Context(), "held"); err != nil {
		t.Fatal(err)
	}
	const sequence = "SELECT last_value FROM "
	before := locktest.Scan[int64](t, p.admin, sequence+p.table("fencing_tokens"))
	p.limits = doctor.DefaultLimits()
	p.limits.Deliver = 10 * time.Second
	began := time.Now()
	results := p.run()
	t.Logf("it took %v", time.Since(began))
	checks := map[string]bool{}
	for _, r := range results {
		t.Logf("%+v", r)
		if r.Level != doctor.OK {
			t.Errorf("%+v", r)
		}
		if checks[r.Check] {
			t.Errorf("two results of %s", r.Check)
		}
		checks[r.Check] = true
	}
	if len(checks) != 18 {
		t.Errorf("%d checks", len(checks))
	}
	if after := locktest.Scan[int64](t, p.admin, sequence+p.table("fencing_tokens")); after != before {
		t.Errorf("the sequence went from %d to %d", before, after)
	}
	pgtest.Eventually(t, locktest.Patience, "its sessions end", func() bool {
		return locktest.Scan[int](t, p.admin, "SELECT count(*) FROM pg_stat_activity WHERE usename = $1", p.conn.User) == 0
	})
}
