package adapters_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	otelprometheus "go.opentelemetry.io/otel/exporters/prometheus"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/trace/noop"
	"go.yaml.in/yaml/v2"

	"github.com/pglock/pglock-go/internal/locktest"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/leader"
	"github.com/pglock/pglock-go/pglock/observe"
	"github.com/pglock/pglock-go/pglock/once"
	"github.com/pglock/pglock-go/pglock/otelpglock"
	"github.com/pglock/pglock-go/pglock/schedule"
)

// monitoring has the files that users of Prometheus get.
const monitoring = "../../docs/monitoring/"

func monitoringFile(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(monitoring + name)
	locktest.OK(t, err)
	return string(text)
}

func parse[T any](t *testing.T, name string) (v T) {
	t.Helper()
	locktest.OK(t, yaml.Unmarshal([]byte(monitoringFile(t, name)), &v))
	return v
}

// prometheusProgram returns the path of a program of Prometheus.
func prometheusProgram(t *testing.T, name string) (path string) {
	t.Helper()
	pgtest.NeedTool(t, "prometheus", func() (err error) {
		if path, err = exec.LookPath(name); err != nil {
			return fmt.Errorf("%w: testdata/setup.sh prometheus installs it", err)
		}
		return nil
	})
	return path
}

// exported returns hooks whose metrics a registry has. The group of a lock is what comes before the colon.
func exported(t *testing.T) (*prometheus.Registry, observe.Hooks) {
	t.Helper()
	registry := prometheus.NewRegistry()
	exporter, err := otelprometheus.New(otelprometheus.WithRegisterer(registry))
	locktest.OK(t, err)
	hooks, err := otelpglock.New(otelpglock.WithMeterProvider(sdkmetric.NewMeterProvider(sdkmetric.WithReader(exporter))),
		otelpglock.WithTracerProvider(noop.NewTracerProvider()), otelpglock.WithGroup(func(name string) string {
			group, _, _ := strings.Cut(name, ":")
			return group
		}))
	locktest.OK(t, err)
	return registry, hooks
}

// query is one of postgres_exporter.
type query struct {
	Query   string
	Metrics []map[string]struct{ Usage, Description string }
}

// columns returns the columns of a query with their usage.
func (q query) columns() map[string]string {
	all := map[string]string{}
	for _, m := range q.Metrics {
		for name, c := range m {
			all[name] = c.Usage
		}
	}
	return all
}

// TestAlerts runs the tests of the rules. Each alert has a test in which it fires, one in which it is
// silent, and a row that says what to do.
func TestAlerts(t *testing.T) {
	t.Parallel()
	promtool := prometheusProgram(t, "promtool")
	for _, args := range [][]string{{"check", "rules", "rules.yaml"}, {"test", "rules", "rules_test.yaml"}} {
		run := exec.Command(promtool, args...)
		run.Dir = monitoring
		if out, err := run.CombinedOutput(); err != nil {
			t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
	type expected = []map[string]any
	cases := map[string]map[bool]int{}
	for _, test := range parse[struct {
		Tests []struct {
			Cases []struct {
				Alert    string   `yaml:"alertname"`
				Expected expected `yaml:"exp_alerts"`
			} `yaml:"alert_rule_test"`
		}
	}](t, "rules_test.yaml").Tests {
		for _, c := range test.Cases {
			if cases[c.Alert] == nil {
				cases[c.Alert] = map[bool]int{}
			}
			cases[c.Alert][len(c.Expected) > 0]++
		}
	}
	document := monitoringFile(t, "README.md")
	alerts := alertNames(t)
	for _, name := range alerts {
		if cases[name][true] == 0 || cases[name][false] == 0 {
			t.Errorf("%s fires in %d cases and is silent in %d", name, cases[name][true], cases[name][false])
		}
		if !strings.Contains(document, "| `"+name+"` |") {
			t.Errorf("%s has no row in README.md", name)
		}
	}
	if len(alerts) != 15 || strings.Count(document, "| `Pglock") != len(alerts) {
		t.Errorf("%d alerts, and %d rows", len(alerts), strings.Count(document, "| `Pglock"))
	}
	// Control: promtool notices a rule that never fires.
	dir := t.TempDir()
	locktest.OK(t, os.WriteFile(filepath.Join(dir, "rules_test.yaml"), []byte(monitoringFile(t, "rules_test.yaml")), 0o600))
	locktest.OK(t, os.WriteFile(filepath.Join(dir, "rules.yaml"), []byte(strings.Replace(monitoringFile(t, "rules.yaml"), "> 0.01", "> 1", 1)), 0o600))
	control := exec.Command(promtool, "test", "rules", "rules_test.yaml")
	control.Dir = dir
	if out, err := control.CombinedOutput(); err == nil || !strings.Contains(string(out), "PglockRenewalErrors") {
		t.Errorf("control: %v\n%s", err, out)
	}
}

func alertNames(t *testing.T) (names []string) {
	t.Helper()
	for _, g := range parse[struct {
		Groups []struct{ Rules []struct{ Alert string } }
	}](t, "rules.yaml").Groups {
		for _, r := range g.Rules {
			names = append(names, r.Alert)
		}
	}
	return names
}

// TestMonitoredNamesExist: each name in the dashboard and the rules is that of a metric or of a label.
func TestMonitoredNamesExist(t *testing.T) {
	t.Parallel()
	known := map[string]bool{}
	for space, q := range parse[map[string]query](t, "queries.yaml") {
		for column, usage := range q.columns() {
			if usage == "GAUGE" {
				known[space+"_"+column] = true
			}
		}
	}
	registry, h := exported(t)
	ctx, failure := t.Context(), errors.New("a failure") // each instrument has a point
	h.Wait(ctx, observe.WaitEvent{})
	h.Acquire(ctx, observe.AcquireEvent{Outcome: observe.OutcomeFailed, Err: failure})
	h.Handoff(ctx, observe.HandoffEvent{})
	h.Renewal(ctx, observe.RenewalEvent{Err: failure})
	h.Loss(ctx, observe.LossEvent{Reason: observe.LossExpired})
	h.Release(ctx, observe.ReleaseEvent{})
	h.Batch(ctx, observe.BatchEvent{Operation: observe.OperationRenew, Err: failure})
	for _, kind := range []observe.Kind{observe.KindTerm, observe.KindTick, observe.KindListener} {
		for _, outcome := range []observe.Outcome{"", observe.OutcomeBegan, observe.OutcomeDone} {
			h.Result(ctx, observe.ResultEvent{Kind: kind, Outcome: outcome, Duration: 1})
		}
	}
	families, err := registry.Gather()
	locktest.OK(t, err)
	for _, f := range families {
		known[f.GetName()] = true
		if f.GetMetric()[0].Histogram != nil {
			for _, part := range []string{"_bucket", "_count", "_sum"} {
				known[f.GetName()+part] = true
			}
		}
		for _, m := range f.GetMetric() {
			for _, l := range m.GetLabel() {
				known[l.GetName()] = true
			}
		}
	}
	for _, file := range []string{"dashboard.json", "rules.yaml", "rules_test.yaml"} {
		found := regexp.MustCompile(`\bpglock_\w+`).FindAllString(monitoringFile(t, file), -1)
		for _, name := range found {
			if !known[name] {
				t.Errorf("%s: there is no %s", file, name)
			}
		}
		if len(found) < 30 {
			t.Errorf("%s: %d names: the pattern does not find them", file, len(found))
		}
	}
}

// TestQueries runs those of postgres_exporter, as the role that their comment asks for, on a database
// with one of everything.
func TestQueries(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	c := locktest.Client(t, url, pglock.WithLogger(nil))
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	for _, name := range []string{"account:1", "account:2", "plain"} {
		_, err := c.Acquire(ctx, name)
		locktest.OK(t, err)
	}
	go func() { _, _ = c.Acquire(ctx, "account:1") }()
	e, err := leader.New(c, "e")
	locktest.OK(t, err)
	_, err = e.Campaign(ctx, "")
	locktest.OK(t, err)
	j, err := schedule.New(c, "report")
	locktest.OK(t, err)
	locktest.OK(t, j.OncePer(ctx, 1e9, func(context.Context, *pglock.Lease) error { return nil }))
	hourly, err := schedule.New(c, "hourly")
	locktest.OK(t, err)
	run, err := hourly.BeginDue(ctx, schedule.Every(time.Hour))
	locktest.OK(t, err)
	_, err = run.Fail(ctx, errors.New("no paper"))
	locktest.OK(t, err)
	for i, text := range []string{"soon", "2026-02-31T25:61:61Z", "2026-02-31T99:59:59Z", "0000-01-01T00:00:00Z", "2026-13-01T00:00:00Z"} { // labels are anybody's
		name := fmt.Sprint("job:", i)
		_, err := c.Acquire(ctx, name, pglock.WithLabels(map[string]string{"next": text}))
		locktest.OK(t, err)
		locktest.Exec(t, pgtest.PoolOn(t, url), "SELECT pglock.advance('last tick: ' || $1::text, 1)", name)
	}
	_, err = once.Do(ctx, c, "k", nil, func(context.Context, *pglock.Lease) (int, error) { return 0, errors.New("unknown") })
	if !errors.Is(err, once.ErrOutcomeUnknown) {
		t.Fatal(err)
	}
	monitor := locktest.PoorRole(t, url, "monitor_of_queries")
	locktest.Exec(t, pgtest.PoolOn(t, url), "GRANT pg_monitor TO monitor_of_queries; SELECT pglock.grant_reader('monitor_of_queries')")
	pgtest.Eventually(t, "a call waits", func() bool {
		return locktest.Scan[int](t, monitor, "SELECT count(*) FROM pglock.locks_waiting") == 1
	})
	want := map[string]float64{ // as postgres_exporter names them, with the first label
		`pglock_held_locks{account}`: 2, `pglock_held_locks{}`: 1, `pglock_waiting_clients{account}`: 1,
		`pglock_tick_expected_seconds{hourly}`:  float64(run.Tick().Add(time.Hour).Unix()),
		`pglock_tick_failures_attempts{hourly}`: 1, `pglock_tick_failures_attempts{report}`: 0,
		`pglock_once_running`: 0, `pglock_once_unresolved`: 1,
	}
	got := map[string]float64{}
	for space, q := range parse[map[string]query](t, "queries.yaml") {
		maps.Copy(got, samples(t, monitor, space, q))
	}
	for name, v := range want {
		if got[name] != v {
			t.Errorf("%s: %v, want %v", name, got[name], v)
		}
	}
	const queue = "pglock_database_notification_queue_ratio" // of the whole server, where others notify
	if ratio, ok := got[queue]; !ok || ratio > 0.01 {
		t.Errorf("%s: %v, want next to nothing", queue, ratio)
	}
	for _, name := range []string{
		"pglock_held_oldest_seconds{account}", "pglock_waiting_longest_seconds{account}", "pglock_election_term_seconds{e}",
		"pglock_tick_recorded_seconds{report}", "pglock_sessions_count{idle}", "pglock_table_live_rows{distributed_locks}",
	} {
		if v, ok := got[name]; !ok || v < 0 || strings.Contains(name, "recorded") != (v > 1.7e9) {
			t.Errorf("%s: %v, %v in %v", name, v, ok, got)
		}
	}
}

// samples runs a query and returns its metrics.
func samples(t *testing.T, pool *pgxpool.Pool, space string, q query) map[string]float64 {
	t.Helper()
	rows, err := pool.Query(t.Context(), q.Query)
	locktest.OK(t, err)
	all, err := pgx.CollectRows(rows, pgx.RowToMap)
	locktest.OK(t, err)
	columns, found := q.columns(), map[string]float64{}
	for _, row := range all {
		label := ""
		for name, v := range row {
			if columns[name] == "LABEL" {
				label = fmt.Sprintf("{%v}", v)
			}
		}
		for name, usage := range columns {
			v, ok := row[name]
			if !ok || v == nil || len(row) != len(columns) {
				t.Errorf("%s: column %q of %v", space, name, row)
			}
			if usage == "GAUGE" {
				found[space+"_"+name+label] = number(t, v)
			}
		}
	}
	return found
}

// number returns a number of the server, of any type.
func number(t *testing.T, v any) (n float64) {
	t.Helper()
	if v, ok := v.(pgtype.Numeric); ok {
		f, err := v.Float64Value()
		locktest.OK(t, err)
		return f.Float64
	}
	if _, err := fmt.Sscan(fmt.Sprint(v), &n); err != nil {
		t.Errorf("%T %v is no number", v, v)
	}
	return n
}
