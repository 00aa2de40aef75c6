package adapters_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	dto "github.com/prometheus/client_model/go"

	"github.com/pglock/pglock-go/advisory"
	"github.com/pglock/pglock-go/fencing"
	"github.com/pglock/pglock-go/internal/locktest"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/internal/testserver"
	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/leader"
	"github.com/pglock/pglock-go/pglock/once"
	"github.com/pglock/pglock-go/pglock/schedule"
)

// prometheusServer is a Prometheus that scrapes a registry twice a second, with the rules of this
// repository. It has each metric also with the prefix "control_", whose counters don't start at 0.
type prometheusServer struct {
	t       *testing.T
	url     string
	scrapes atomic.Int64
}

func startPrometheus(t *testing.T, registry *prometheus.Registry) *prometheusServer {
	t.Helper()
	program := prometheusProgram(t, "prometheus")
	p := &prometheusServer{t: t}
	all, late := promhttp.HandlerFor(registry, promhttp.HandlerOpts{}), promhttp.HandlerFor(withoutZeros{registry}, promhttp.HandlerOpts{})
	app := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/control" {
			late.ServeHTTP(w, r)
			return
		}
		all.ServeHTTP(w, r)
		p.scrapes.Add(1)
	}))
	t.Cleanup(app.Close)
	rules, err := filepath.Abs(monitoring + "rules.yaml")
	locktest.OK(t, err)
	dir, address := t.TempDir(), freeAddress(t)
	config := filepath.Join(dir, "prometheus.yml")
	locktest.OK(t, os.WriteFile(config, fmt.Appendf(nil, `global: {scrape_interval: 500ms, evaluation_interval: 500ms}
rule_files: [%q]
scrape_configs:
  - {job_name: app, static_configs: [{targets: [%q]}]}
  - job_name: control
    metrics_path: /control
    static_configs: [{targets: [%q]}]
    metric_relabel_configs: [{source_labels: [__name__], target_label: __name__, replacement: control_$1}]
`, rules, app.Listener.Addr(), app.Listener.Addr()), 0o600))
	// The shell ends it when its standard input ends, as it does after a SIGKILL of the test.
	run := exec.Command("sh", "-c", `"$@" </dev/null & child=$!; cat >/dev/null; kill $child; wait $child`, "sh", program,
		"--config.file="+config, "--storage.tsdb.path="+filepath.Join(dir, "data"), "--web.listen-address="+address, "--log.level=warn")
	var log bytes.Buffer
	run.Stdout, run.Stderr = &log, &log
	input, err := run.StdinPipe()
	locktest.OK(t, err)
	locktest.OK(t, run.Start())
	t.Cleanup(func() {
		_ = input.Close()
		_ = run.Wait() // ended by a signal
		if t.Failed() {
			t.Logf("prometheus: %s", log.Bytes())
		}
	})
	p.url = "http://" + address
	p.awaitScrapes()
	return p
}

// awaitScrapes waits until Prometheus has what the registry has now: one scrape has begun and ended
// after this call, and the next one has begun.
func (p *prometheusServer) awaitScrapes() {
	p.t.Helper()
	until := p.scrapes.Load() + 3
	pgtest.Eventually(p.t, "Prometheus scrapes", func() bool { return p.scrapes.Load() >= until })
}

// query returns the values of an instant vector by their labels "pglock_…" and "alertname".
func (p *prometheusServer) query(expr string) map[string]float64 {
	p.t.Helper()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Get(p.url + "/api/v1/query?query=" + url.QueryEscape(expr))
	locktest.OK(p.t, err)
	defer resp.Body.Close()
	var answer struct {
		Error string
		Data  struct {
			Result []struct {
				Metric map[string]string
				Value  [2]any
			}
		}
	}
	locktest.OK(p.t, json.NewDecoder(resp.Body).Decode(&answer))
	if answer.Error != "" {
		p.t.Fatalf("%s: %s", expr, answer.Error)
	}
	found := map[string]float64{}
	for _, r := range answer.Data.Result {
		var words []string
		for _, name := range []string{"alertname", "pglock_kind", "pglock_lock_name", "pglock_group", "pglock_outcome", "pglock_loss_reason"} {
			if v, ok := r.Metric[name]; ok {
				words = append(words, v)
			}
		}
		v, err := strconv.ParseFloat(r.Value[1].(string), 64)
		locktest.OK(p.t, err)
		found[strings.Join(words, " ")] += v
	}
	return found
}

// withoutZeros leaves out the counters that are 0.
type withoutZeros struct{ prometheus.Gatherer }

func (w withoutZeros) Gather() ([]*dto.MetricFamily, error) {
	all, err := w.Gatherer.Gather()
	for _, f := range all {
		var kept []*dto.Metric
		for _, m := range f.GetMetric() {
			if m.GetCounter() == nil || m.GetCounter().GetValue() != 0 {
				kept = append(kept, m)
			}
		}
		f.Metric = kept
	}
	return all, err
}

func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	locktest.OK(t, err)
	defer l.Close()
	return l.Addr().String()
}

// TestPrometheusSeesTheDay scrapes a client that wins, waits, loses and is refused, and compares what
// Prometheus knows with what happened. Counters for alerts have also grown by that, although some of
// them grew only once.
func TestPrometheusSeesTheDay(t *testing.T) {
	t.Parallel()
	registry, hooks := exported(t)
	p := startPrometheus(t, registry)
	databaseURL := pgtest.Database(t)
	other := locktest.Client(t, databaseURL) // another process, which is not observed
	c := locktest.Client(t, databaseURL, pglock.WithObserver(hooks), pglock.WithLogger(nil))
	pool := pgtest.PoolOn(t, databaseURL)
	ctx := t.Context()
	must := func(err error) { t.Helper(); locktest.OK(t, err) }
	refused := func(err error, kind error) {
		t.Helper()
		if !errors.Is(err, kind) {
			t.Errorf("%v, want %v", err, kind)
		}
	}
	acquire := func(name string, opts ...pglock.LeaseOption) *pglock.Lease {
		t.Helper()
		l, err := c.Acquire(ctx, name, opts...)
		must(err)
		return l
	}
	own := errors.New("the function's")
	nothing := func(context.Context, *pglock.Lease) error { return nil }

	// The morning: all is well.
	must(acquire("account:1").Release(ctx))
	e, err := leader.New(c, "e")
	must(err)
	term, err := e.Campaign(ctx, "")
	must(err)
	must(term.Resign(ctx))
	job, err := schedule.New(c, "report", schedule.WithLogger(nil), schedule.WithMaxLate(time.Hour))
	must(err)
	tick := time.Now().Truncate(time.Second).Add(-10 * time.Second)
	must(job.Once(ctx, tick, nothing))
	do := func(key string, err error) error {
		_, failed := once.Do(ctx, c, key, nil, func(context.Context, *pglock.Lease) (int, error) { return 0, err })
		return failed
	}
	must(do("k", nil))
	p.awaitScrapes()
	noon := time.Now()

	// Losses, and refusals of the former holders.
	for range 2 {
		l := acquire("account:2", pglock.WithTTL(4*time.Second), pglock.WithRenewEvery(0))
		locktest.Receive(t, l.Done())
		refused(l.Guard(ctx, nil), fencing.ErrStale)
	}
	l := acquire("account:3")
	must(other.Revoke(ctx, l.Name(), l.Token(), "a test"))
	locktest.Receive(t, l.Done())
	l = acquire("account:4", pglock.WithRenewEvery(0))
	locktest.Exec(t, pool, "UPDATE pglock.distributed_locks SET token = pglock.next_fencing_token() WHERE name = 'account:4'")
	must(pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error { refused(l.Guard(ctx, tx), fencing.ErrStale); return nil }))
	refused(l.Release(ctx), pglock.ErrLost)
	locktest.Exec(t, pool, "CREATE TABLE accounts (id int)")
	must(fencing.Protect(ctx, pool, "accounts"))
	refused(c.Do(ctx, "account:5", func(ctx context.Context, _ *pglock.Lease) error {
		_, err := pool.Exec(ctx, "INSERT INTO accounts VALUES (1)")
		return fencing.Explain(err)
	}), fencing.ErrUnfenced)

	// Waits: one try, one call that gives up, and one that is granted.
	held, err := other.Acquire(ctx, "account:6")
	must(err)
	_, err = c.TryAcquire(ctx, "account:6")
	refused(err, pglock.ErrNotAcquired)
	_, err = c.Acquire(ctx, "account:6", pglock.WithWait(time.Second))
	refused(err, pglock.ErrTimeout)
	granted := make(chan *pglock.Lease, 1)
	go func() { l, _ := c.Acquire(ctx, "account:6"); granted <- l }()
	pgtest.Eventually(t, "a call waits", func() bool { return p.query("pglock_acquire_waiting")["account"] == 1 })
	must(held.Release(ctx))
	must(locktest.Receive(t, granted).Release(ctx))

	// Transactions, effects, ticks and terms.
	refused(c.DoTx(ctx, "account:7", func(ctx context.Context, _ pgx.Tx) error {
		refused(c.DoTx(ctx, "account:7", nothingTx, advisory.WithTimeout(10*time.Millisecond)), pglock.ErrTimeout)
		return own
	}), own)
	must(c.DoTx(ctx, "account:7", nothingTx))
	must(do("k", own))
	refused(do("unknown", own), once.ErrOutcomeUnknown)
	refused(job.Once(ctx, tick.Add(time.Second), func(context.Context, *pglock.Lease) error { return own }), own)
	refused(job.Once(ctx, tick.Add(-2*time.Hour), nothing), schedule.ErrDone)
	run, err := job.Begin(ctx, tick.Add(2*time.Second))
	must(err)
	must(run.Abandon(ctx))
	must(job.Once(ctx, tick.Add(3*time.Second), nothing))
	soon, err := schedule.New(c, "report", schedule.WithLogger(nil), schedule.WithMaxLate(time.Second))
	must(err)
	refused(soon.Once(ctx, tick.Add(4*time.Second), nothing), schedule.ErrMissed)
	term, err = e.Campaign(ctx, "")
	must(err)
	must(other.Revoke(ctx, "e", term.Lease().Token(), "a test"))
	locktest.Receive(t, term.Lease().Done())
	_ = term.Resign(ctx) // it is lost
	term, err = e.Campaign(ctx, "")
	must(err)
	next := time.Now().UTC().Add(6 * time.Hour).Truncate(time.Minute)
	loop, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- job.Run(loop, schedule.Daily(next.Format("15:04"), time.UTC), nothing) }()

	counts := map[string]float64{
		"pglock_lease_losses_total account expired": 2, "pglock_lease_losses_total account revoked": 1, "pglock_lease_losses_total e revoked": 1,
		"pglock_results_total guard account stale": 3, "pglock_results_total guard account unfenced": 1,
		"pglock_results_total once once unknown": 1,
		"pglock_results_total term e lost":       1,
		"pglock_results_total tick report done":  1, "pglock_results_total tick report failed": 1, // and one done in the morning
		"pglock_results_total tick report missed": 1, "pglock_results_total tick report abandoned": 1,
		"pglock_results_total term e began": 2, "pglock_results_total tick report began": 3, // and one in the morning
	}
	growth := func(prefix string) map[string]float64 { // since noon; a series that began later has none
		found := map[string]float64{}
		for _, metric := range []string{"pglock_lease_losses_total", "pglock_results_total"} {
			series := prefix + metric + `{pglock_kind!="listener"}`
			for labels, v := range p.query(fmt.Sprintf("%s - %[1]s @ %.3f", series, float64(noon.UnixMilli())/1e3)) {
				if v != 0 {
					found[metric+" "+labels] = v
				}
			}
		}
		return found
	}
	values := map[string]map[string]float64{
		`pglock_results_total{pglock_kind!="listener"} > 0`: {
			"guard account stale": 3, "guard account unfenced": 1,
			"tx account done": 1, "tx account failed": 1, "tx account timeout": 1,
			"once once done": 1, "once once repeated": 1, "once once unknown": 1,
			"term e began": 3, "term e ended": 1, "term e lost": 1,
			"tick report began": 4, "tick report done": 2, "tick report failed": 1, "tick report missed": 1, "tick report abandoned": 1,
		},
		"pglock_lease_losses_total": {
			"account expired": 2, "account revoked": 1, "account max_hold": 0, "account ended": 0,
			"e expired": 0, "e revoked": 1, "e max_hold": 0, "e ended": 0,
			"once expired": 0, "once revoked": 0, "once max_hold": 0, "once ended": 0,
			"report expired": 0, "report revoked": 0, "report max_hold": 0, "report ended": 0,
		},
		`pglock_acquire_duration_seconds_count{pglock_group="account"}`: {"account granted": 7, "account busy": 1, "account timeout": 1},

		"pglock_acquire_waiting":             {"account": 0},
		"pglock_lease_active":                {"account": 0, "e": 1, "once": 0, "report": 0},
		"pglock_leader_active":               {"e": 1},
		"pglock_tick_lateness_seconds_count": {"report": 4},
		"round(pglock_tick_next_seconds)":    {"report": float64(next.Unix())},

		`ALERTS{alertstate="firing"}`: {"PglockLeaseLost account expired": 1, "PglockFenceRefused account stale": 1, "PglockFenceRefused account unfenced": 1},
	}
	p.awaitScrapes()
	for expr, want := range values {
		var got map[string]float64
		if !testserver.Poll(ctx, pgtest.Patience, func() bool { got = p.query(expr); return maps.Equal(got, want) }) {
			t.Errorf("%s:\n%v\nwant\n%v", expr, got, want)
		}
	}
	if got := growth(""); !maps.Equal(got, counts) {
		t.Errorf("growth:\n%v\nwant\n%v", got, counts)
	}
	if got := growth("control_"); got["pglock_results_total guard account unfenced"] != 0 || got["pglock_lease_losses_total account revoked"] != 0 || len(got) >= len(counts) {
		t.Errorf("control: without zeros, the first increase is seen: %v", got)
	}
	if v := p.query("pglock_tick_last_success_seconds")["report"]; time.Since(time.UnixMilli(int64(v*1e3))).Abs() > 10*time.Minute {
		t.Errorf("the last success: %v", v)
	}
	panels, empty := panelQueries(t), 0
	for _, expr := range panels {
		if len(p.query(expr)) == 0 { // of postgres_exporter, or nothing such has happened
			empty++
		}
	}
	if len(panels) < 40 || empty > len(panels)/2 {
		t.Errorf("%d of %d queries of the dashboard have no result", empty, len(panels))
	}
	stop()
	_ = locktest.Receive(t, ended)
	must(term.Resign(ctx))
	pgtest.Eventually(t, "the end of the day", func() bool {
		return p.query("pglock_leader_active")["e"] == 0 && p.query("pglock_tick_next_seconds")["report"] == 0
	})
}

// panelQueries returns the queries of the dashboard, for all jobs and groups.
func panelQueries(t *testing.T) (all []string) {
	t.Helper()
	var dashboard struct {
		Panels []struct{ Targets []struct{ Expr string } }
	}
	locktest.OK(t, json.Unmarshal([]byte(monitoringFile(t, "dashboard.json")), &dashboard))
	for _, panel := range dashboard.Panels {
		for _, target := range panel.Targets {
			all = append(all, strings.NewReplacer("$__rate_interval", "1m", "$job", ".*", "$group", ".*").Replace(target.Expr))
		}
	}
	return all
}

func nothingTx(context.Context, pgx.Tx) error { return nil }
