package pglock_test

import (
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/pglock/pglock-go/internal/faultproxy"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/pglock"
)

// TestDefaultLogger: without WithLogger, a client tells slog.Default, as it is at the time, about
// failed renewals, lost leases and failed clean-ups. With a nil logger it tells nobody. The test is
// not parallel, since slog.Default is the process's.
func TestDefaultLogger(t *testing.T) { //nolint:paralleltest // slog.Default
	before := slog.Default()
	defer slog.SetDefault(before)
	for name, tc := range map[string]struct {
		opts []pglock.Option
		want []string
	}{
		"default": {nil, []string{"level=WARN msg=\"pglock: renewal failed", "level=WARN msg=\"pglock: lease lost\" name=n", "could not prune"}},
		"nil":     {[]pglock.Option{pglock.WithLogger(nil)}, nil},
	} {
		t.Run(name, func(t *testing.T) { //nolint:paralleltest // slog.Default
			f := newFixture(t)
			proxy := faultproxy.New(t, address(f.pool.Config().ConnConfig))
			c := f.through(proxy.URL(pgtest.URL(t))).open(append(tc.opts, pglock.WithPruneEvery(50*time.Millisecond, time.Hour))...)
			var log logBuffer // set after Open
			slog.SetDefault(slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug})))
			f.sql("DROP FUNCTION pglock.raise_pruned(bigint)") // fails a clean-up
			if tc.want == nil {
				rest(t, 200*time.Millisecond)
			} else {
				pgtest.Eventually(t, 20*time.Second, "a failed clean-up is logged", func() bool { return strings.Contains(log.String(), "could not prune") })
			}
			l := try(t, c, "n", pglock.WithTTL(time.Second))
			proxy.Refuse(true)
			proxy.Sever()
			within(t, 20*time.Second, "the loss", l.Done())
			if !errors.Is(l.Err(), pglock.ErrLost) {
				t.Errorf("the lease ended: %v", l.Err())
			}
			proxy.Refuse(false)
			for _, want := range tc.want {
				pgtest.Eventually(t, 20*time.Second, want, func() bool { return strings.Contains(log.String(), want) })
			}
			if tc.want == nil && log.String() != "" {
				t.Errorf("logged %s", log.String())
			}
		})
	}
}
