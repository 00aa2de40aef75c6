package adapters_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/go-co-op/gocron/v2"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/robfig/cron/v3"

	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/cronlock"
	"github.com/pglock/pglock-go/pglock/gocronlock"
	"github.com/pglock/pglock-go/pglock/ticks"
)

// With this variable the test binary is a scheduler of that kind, a process that can be killed.
const (
	schedulerVariable = "PGLOCK_TEST_SCHEDULER"
	urlVariable       = "PGLOCK_TEST_SCHEDULER_URL"
	periodVariable    = "PGLOCK_TEST_SCHEDULER_PERIOD"
	skewVariable      = "PGLOCK_TEST_SCHEDULER_SKEW"
)

// jobTTL is how long a killed scheduler's tick waits for another one.
const jobTTL = 2 * time.Second

// machine is one scheduler's process. It writes down what it does.
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
	run := map[string]func() error{"gocron": m.gocron, "gocron without a lock": m.gocronBare, "cron": m.cron, "ticker": m.ticker}[kind]
	if run == nil {
		return fail(errors.New("no such scheduler"))
	}
	if err := run(); err != nil {
		return fail(err)
	}
	select {} // until it is killed
}

func (m *machine) now() time.Time { return time.Now().Add(m.skew) }

func (m *machine) options() []ticks.Option {
	return []ticks.Option{ticks.WithTTL(jobTTL), ticks.WithClock(m.now), ticks.WithReport(func(tick time.Time, err error) {
		text := "done"
		switch {
		case errors.Is(err, ticks.ErrDone):
			text = "by another"
		case err != nil:
			text = err.Error()
		}
		m.exec("INSERT INTO reports VALUES ($1, $2, $3)", tick, os.Getpid(), text)
	})}
}

// work is the job: it takes a moment, in which its process may be killed.
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

// gocronWith starts gocron with ticks at the whole multiples of the period, by the clock of this machine.
func (m *machine) gocronWith(opt gocron.SchedulerOption, task any) error {
	s, err := gocron.NewScheduler(opt, gocron.WithStopTimeout(time.Second))
	if err != nil {
		return err
	}
	// The first tick by this machine's clock, as the true time at which it comes.
	first := m.now().Truncate(m.period).Add(2 * m.period).Add(-m.skew)
	if _, err := s.NewJob(gocron.DurationJob(m.period), gocron.NewTask(task), gocron.WithName("report"),
		gocron.WithStartAt(gocron.WithStartDateTime(first))); err != nil {
		return err
	}
	s.Start()
	return nil
}

func (m *machine) gocron() error {
	locker, err := gocronlock.NewLocker[gocron.Lock](m.client, m.period, append(m.options(), ticks.WithTTL(m.period*7/10))...)
	if err != nil {
		return err
	}
	return m.gocronWith(gocron.WithDistributedLocker(locker), locker.Task(m.work))
}

// gocronBare is the control.
func (m *machine) gocronBare() error {
	return m.gocronWith(gocron.WithLimitConcurrentJobs(10, gocron.LimitModeWait), func(ctx context.Context) error { return m.work(ctx, nil) })
}

// every is a schedule with ticks at the whole multiples of the period, by the machine's clock: cron's own
// have whole seconds.
type every struct{ period time.Duration }

func (e every) Next(t time.Time) time.Time { return t.Truncate(e.period).Add(e.period) }

// shifted is a schedule as a machine with another clock has it.
type shifted struct {
	cron.Schedule
	skew time.Duration
}

func (s shifted) Next(t time.Time) time.Time { return s.Schedule.Next(t.Add(s.skew)).Add(-s.skew) }

func (m *machine) cron() error {
	var schedule cron.Schedule = every{m.period}
	if m.period >= time.Second {
		var err error
		if schedule, err = cron.NewParser(cron.Second | cron.Minute | cron.Hour | cron.Dom | cron.Month | cron.Dow).Parse("* * * * * *"); err != nil {
			return err
		}
	}
	job, err := ticks.New(m.client, "report", m.options()...)
	if err != nil {
		return err
	}
	run, err := cronlock.Func(m.ctx, job, schedule, m.work)
	if err != nil {
		return err
	}
	c := cron.New()
	c.Schedule(shifted{schedule, m.skew}, cron.FuncJob(run))
	c.Start()
	return nil
}

func (m *machine) ticker() error {
	job, err := ticks.New(m.client, "report", m.options()...)
	if err != nil {
		return err
	}
	go func() { _ = job.Every(m.ctx, m.period, m.work) }()
	return nil
}
