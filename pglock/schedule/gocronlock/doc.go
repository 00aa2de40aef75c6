// Package gocronlock connects package schedule to github.com/go-co-op/gocron/v2: among any number
// of schedulers, one runs each tick of a job.
//
// [Locker] chooses a scheduler for each tick. If that scheduler dies, another one runs the same
// tick: see package schedule. [Elector] chooses one scheduler for all ticks. After its death, ticks
// are missed until its lease has expired, and around the change both schedulers may run the same
// tick. Prefer Locker.
//
// # Jobs on a grid
//
// Cron expressions, daily jobs and the like share the locker of the scheduler. Its grid is a
// minute, or a second for cron expressions with seconds:
//
//	locker, err := gocronlock.NewLocker[gocron.Lock](client, time.Minute)
//	if err != nil {
//		return err
//	}
//	s, err := gocron.NewScheduler(gocron.WithDistributedLocker(locker))
//	if err != nil {
//		return err
//	}
//	_, err = s.NewJob(gocron.CronJob("*/5 * * * *", false),
//		gocron.NewTask(locker.Task(report)), gocron.WithName("report"))
//	if err != nil {
//		return err
//	}
//	s.Start()
//
// # Jobs with their own interval
//
// A DurationJob counts from the start of its scheduler, so its ticks are at different moments in
// each scheduler. Give such a job its own locker, with its interval:
//
//	locker, err := gocronlock.NewJobLocker[gocron.Lock](client, "poll", 4*time.Second)
//	if err != nil {
//		return err
//	}
//	s, err := gocron.NewScheduler()
//	if err != nil {
//		return err
//	}
//	_, err = s.NewJob(gocron.DurationJob(4*time.Second),
//		gocron.NewTask(locker.Task(poll)), gocron.WithDistributedJobLocker(locker))
//	if err != nil {
//		return err
//	}
//	s.Start()
//
// A job that does not fit the grid of its locker runs once in each scheduler, or too rarely. gocron
// gives a locker only the job's name. The locker derives the interval from its first calls, and
// logs a warning at the third.
//
// # One leader
//
//	elector, err := gocronlock.NewElector(client, "leader")
//	if err != nil {
//		return err
//	}
//	s, err := gocron.NewScheduler(gocron.WithDistributedElector(elector))
//	if err != nil {
//		return err
//	}
//	_, err = s.NewJob(gocron.DurationJob(time.Minute), gocron.NewTask(elector.Task(report)))
//	if err != nil {
//		return err
//	}
//	s.Start()
//
// # Failures
//
// gocron drops the errors of lockers and electors. This package logs them at Warn, like the errors
// of tasks made by Task: see schedule.WithLogger and [WithElectorLogger]. A tick that another
// scheduler runs is not a failure.
//
// # Types
//
// This package does not import gocron: its types satisfy gocron's interfaces. The method Lock must
// return gocron's own interface type, which a type parameter names: NewLocker[gocron.Lock].
package gocronlock
