package adapters_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/go-co-op/gocron/v2"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/robfig/cron/v3"

	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/schedule"
)

// With schedulerVariable set, the test binary is a scheduler of that kind: a process that a test
// can kill.
const (
	schedulerVariable = "PGLOCK_TEST_SCHEDULER"
	urlVariable       = "PGLOCK_TEST_SCHEDULER_URL"
	periodVariable    = "PGLOCK_TEST_SCHEDULER_PERIOD"
	skewVariable      = "PGLOCK_TEST_SCHEDULER_SKEW"
)

// jobTTL is how long the tick of a killed scheduler stays blocked.
const jobTTL = 2 * time.Second

// machine is the process of one scheduler. It records what it does in tables.
type machine struct {
	ctx    context.Context
	pool   *pgxpool.Pool
	client *pglock.Client
	period time.Duration
	skew   time.Duration
}

func runScheduler(kind string) int {
	ctx := context.Background()
	fail := func(err error) int {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	pool, err := pgxpool.New(ctx, os.Getenv(urlVariable))
	if err != nil {
		return fail(err)
	}
	client, err := pglock.Open(ctx, pool)
	if err != nil {
		return fail(err)
	}
	period, err := time.ParseDuration(os.Getenv(periodVariable))
	if err != nil {
		return fail(err)
	}
	skew, err := time.ParseDuration(os.Getenv(skewVariable))
	if err != nil {
		return fail(err)
	}
	m := &machine{ctx, pool, client, period, skew}
	run := map[string]func() error{"gocron": m.gocron, "gocron without a lock": m.gocronBare, "cron": m.cron}[kind]
	if run == nil {
		return fail(errors.New("no such scheduler"))
	}
	if err := run(); err != nil {
		return fail(err)
	}
	select {} // until it is killed
}

func (m *machine) now() time.Time { return time.Now().Add(m.skew) }

func (m *machine) options() []schedule.Option {
	return []schedule.Option{schedule.WithTTL(jobTTL), schedule.WithClock(m.now), schedule.WithLogger(slog.New(m)), schedule.WithReport(func(tick time.Time, err error) {
		text := "done"
		if err != nil {
			text = err.Error()
		}
		m.exec("INSERT INTO reports VALUES ($1, $2, $3)", tick, os.Getpid(), text)
	})}
}

// A machine is the log handler of its job. It records the ticks that another machine runs, which
// are logged at Debug and not reported, so that the test knows that this machine is up.
func (m *machine) Enabled(context.Context, slog.Level) bool { return true }

func (m *machine) Handle(_ context.Context, r slog.Record) error {
	r.Attrs(func(a slog.Attr) bool {
		if a.Key == "tick" && r.Level == slog.LevelDebug {
			m.exec("INSERT INTO reports VALUES ($1, $2, 'by another')", a.Value.Time(), os.Getpid())
		}
		return true
	})
	return nil
}

func (m *machine) WithAttrs([]slog.Attr) slog.Handler { return m }
func (m *machine) WithGroup(string) slog.Handler      { return m }

// work is the job. It takes some time, so that a test can kill the process while it runs.
func (m *machine) work(ctx context.Context, l *pglock.Lease) error {
	tick := time.Now()
	if l != nil {
		if err := m.pool.QueryRow(ctx, "SELECT (labels->>'tick')::timestamptz FROM pglock.distributed_locks WHERE token = $1", int64(l.Token())).Scan(&tick); err != nil {
			return err
		}
	}
	m.exec("INSERT INTO begun VALUES ($1, $2)", tick, os.Getpid())
	m.exec("SELECT pg_sleep(0.02)")
	_, err := m.pool.Exec(ctx, "INSERT INTO runs VALUES ($1, $2)", tick, os.Getpid())
	return err
}

func (m *machine) exec(sql string, args ...any) {
	if _, err := m.pool.Exec(m.ctx, sql, args...); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
}

// gocronWith starts gocron with ticks at the whole multiples of the period by this machine's clock.
func (m *machine) gocronWith(task func(ctx context.Context) error) error {
	s, err := gocron.NewScheduler(gocron.WithStopTimeout(time.Second))
	if err != nil {
		return err
	}
	// The first tick by this machine's clock, in true time.
	first := m.now().Truncate(m.period).Add(2 * m.period).Add(-m.skew)
	if _, err := s.NewJob(gocron.DurationJob(m.period), gocron.NewTask(task), gocron.WithName("report"),
		gocron.WithStartAt(gocron.WithStartDateTime(first))); err != nil {
		return err
	}
	s.Start()
	return nil
}

func (m *machine) gocron() error {
	job, err := schedule.New(m.client, "report", m.options()...)
	if err != nil {
		return err
	}
	return m.gocronWith(dueTask(job, schedule.Every(m.period), m.work))
}

// gocronBare is the control.
func (m *machine) gocronBare() error {
	return m.gocronWith(func(ctx context.Context) error { return m.work(ctx, nil) })
}

// every is a cron.Schedule with ticks at the whole multiples of the period by the machine's clock.
// cron's own schedules have whole seconds.
type every struct{ period time.Duration }

func (e every) Next(t time.Time) time.Time { return t.Truncate(e.period).Add(e.period) }

// shifted is the schedule of a machine whose clock is ahead by skew.
type shifted struct {
	cron.Schedule
	skew time.Duration
}

func (s shifted) Next(t time.Time) time.Time { return s.Schedule.Next(t.Add(s.skew)).Add(-s.skew) }

func (m *machine) cron() error {
	var ticks cron.Schedule = every{m.period}
	if m.period >= time.Second {
		var err error
		if ticks, err = cron.NewParser(cron.Second | cron.Minute | cron.Hour | cron.Dom | cron.Month | cron.Dow).Parse("* * * * * *"); err != nil {
			return err
		}
	}
	job, err := schedule.New(m.client, "report", m.options()...)
	if err != nil {
		return err
	}
	c := cron.New()
	c.Schedule(shifted{ticks, m.skew}, cron.FuncJob(func() { _ = job.RunDue(m.ctx, ticks, m.work) }))
	c.Start()
	return nil
}
