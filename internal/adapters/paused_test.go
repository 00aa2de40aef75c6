package adapters_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/go-co-op/gocron/v2"
	"github.com/google/uuid"
	"github.com/jonboulle/clockwork"
	"github.com/robfig/cron/v3"

	"github.com/pglock/pglock-go/internal/locktest"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/schedule"
)

// host is a scheduler whose clock the test sets.
type host struct {
	clock *clockwork.FakeClock
	ended chan error // of each call of the task
}

// wakeAt sets the host's clock, as if the host had been suspended until then, and waits until the tick
// that was due meanwhile was handled.
func (h host) wakeAt(t *testing.T, to time.Time) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), pgtest.Patience)
	defer cancel()
	if err := h.clock.BlockUntilContext(ctx, 1); err != nil { // the scheduler's timer
		t.Fatal(err)
	}
	h.clock.Advance(to.Sub(h.clock.Now()))
	if err := locktest.Receive(t, h.ended); err != nil && !schedule.Done(err) {
		t.Errorf("at %v: %v", to, err)
	}
}

// taskKinds make the task of a job, and the options with which gocron calls it.
var taskKinds = map[string]func(job *schedule.Job, clock clockwork.Clock, spec cron.Schedule, fn schedule.Func) (task any, opts []gocron.JobOption, err error){
	"RunDue": func(job *schedule.Job, _ clockwork.Clock, spec cron.Schedule, fn schedule.Func) (any, []gocron.JobOption, error) {
		return dueTask(job, spec, fn), nil, nil
	},
	"control: a tick derived from the clock": func(job *schedule.Job, clock clockwork.Clock, _ cron.Schedule, fn schedule.Func) (any, []gocron.JobOption, error) {
		l := &minuteLocker{job: job, clock: clock}
		return func(ctx context.Context) error { return fn(ctx, l.run.Lease()) }, []gocron.JobOption{gocron.WithDistributedJobLocker(l)}, nil
	},
}

// minuteLocker is a gocron.Locker that takes the minute at which it is called for the tick.
type minuteLocker struct {
	job   *schedule.Job
	clock clockwork.Clock
	run   *schedule.Run
}

func (l *minuteLocker) Lock(ctx context.Context, _ string) (gocron.Lock, error) {
	tick, err := schedule.Due(schedule.Every(time.Minute), l.clock.Now())
	if err != nil {
		return nil, err
	}
	l.run, err = l.job.Begin(ctx, tick)
	return l, err
}

func (l *minuteLocker) Unlock(ctx context.Context) error { return l.run.End(ctx) }

// TestP60_APausedSchedulerRunsNoTickTwice: of two schedulers with an hourly job, one is suspended over
// a tick, which the other one runs in time. When it wakes up, gocron calls the job late. In the
// control, with a locker that derives the tick from the time of the call, the job runs again.
func TestP60_APausedSchedulerRunsNoTickTwice(t *testing.T) {
	t.Parallel()
	for name, build := range taskKinds {
		for late, repeats := range map[time.Duration]bool{ // in the control
			0: false, 40 * time.Second: false, 66 * time.Second: true, 10 * time.Minute: true, 59*time.Minute + 55*time.Second: false,
		} {
			t.Run(fmt.Sprintf("%s, %v late", name, late), func(t *testing.T) {
				t.Parallel()
				url := pgtest.Database(t)
				due := lastHour.Add(-3 * time.Hour)
				spec, err := cron.ParseStandard("0 * * * *")
				if err != nil {
					t.Fatal(err)
				}
				var ran []time.Time
				hosts := make([]host, 2)
				for i := range hosts {
					h := host{clockwork.NewFakeClockAt(due.Add(-time.Second)), make(chan error, 10)}
					hosts[i] = h
					client := locktest.Client(t, url)
					job, err := schedule.New(client, "report", schedule.WithClock(h.clock.Now), schedule.WithLogger(nil))
					if err != nil {
						t.Fatal(err)
					}
					task, opts, err := build(job, h.clock, spec, func(ctx context.Context, l *pglock.Lease) error {
						info, err := client.Get(ctx, l.Name())
						if err != nil {
							return err
						}
						tick, err := time.Parse(time.RFC3339Nano, info.Labels["tick"])
						ran = append(ran, tick)
						return err
					})
					if err != nil {
						t.Fatal(err)
					}
					s := newScheduler(t, gocron.WithClock(h.clock))
					if _, err := s.NewJob(gocron.CronJob("0 * * * *", false), gocron.NewTask(task), append(opts, gocron.WithEventListeners(
						gocron.AfterJobRuns(func(uuid.UUID, string) { h.ended <- nil }),
						gocron.AfterJobRunsWithError(func(_ uuid.UUID, _ string, err error) { h.ended <- err }),
						gocron.AfterLockError(func(_ uuid.UUID, _ string, err error) { h.ended <- err })))...); err != nil {
						t.Fatal(err)
					}
					s.Start()
				}
				hosts[0].wakeAt(t, due)
				hosts[1].wakeAt(t, due.Add(late))
				for _, h := range hosts { // and the next tick
					h.wakeAt(t, due.Add(time.Hour))
				}
				switch control := strings.HasPrefix(name, "control"); {
				case control && repeats != (len(ran) == 3):
					t.Errorf("control: ticks %v, want a repetition: %v", ran, repeats)
				case !control && (len(ran) != 2 || !ran[0].Equal(due) || !ran[1].Equal(due.Add(time.Hour))):
					t.Errorf("ticks %v", ran)
				}
			})
		}
	}
}
