// Package gocronlock connects package schedule to github.com/go-co-op/gocron/v2: among any number
// of schedulers, one runs each tick of a job. If that scheduler dies, another one runs the same
// tick.
//
// [Task] makes the function for gocron.NewTask:
//
//	job, err := schedule.New(client, "report")
//	if err != nil {
//		return err
//	}
//	fiveMinutes, err := cron.ParseStandard("*/5 * * * *") // of robfig/cron/v3, as gocron does
//	if err != nil {
//		return err
//	}
//	task, err := gocronlock.Task(job, fiveMinutes, report)
//	if err != nil {
//		return err
//	}
//	s, err := gocron.NewScheduler()
//	if err != nil {
//		return err
//	}
//	_, err = s.NewJob(gocron.CronJob("*/5 * * * *", false), gocron.NewTask(task))
//	if err != nil {
//		return err
//	}
//	s.Start()
//
// For a gocron.DailyJob, the ticks are those of schedule.Daily in the location of the scheduler. For a
// gocron.DurationJob of d, which counts from the start of its scheduler, they are those of
// schedule.Every(d): in each interval, the first scheduler that calls the task runs it.
//
// # Why a task and not a gocron.Locker
//
// gocron gives a Locker the name of the job, but not the tick. A Locker must derive the tick from the
// time at which it is called. A scheduler that was paused calls it late, at the time of another tick,
// and the job runs again. A Task asks the schedule instead. Use it without WithDistributedLocker.
//
// # One leader
//
// A gocron.Elector chooses one scheduler for all jobs. Ticks are missed until a dead leader's lease
// has expired, and around the change both leaders may run a tick, unless it is a Task. An
// Election of package leader with this method is one:
//
//	type elector struct{ *leader.Election }
//
//	func (e elector) IsLeader(context.Context) error {
//		if _, leads := e.Term(); !leads {
//			return errors.New("another scheduler leads")
//		}
//		return nil
//	}
//
// Another goroutine calls its method Run, with a function that waits for the end of its context.
//
// # Failures
//
// The job logs failures at Warn, by slog.Default() unless schedule.WithLogger sets another logger. A
// tick that another scheduler runs is not a failure.
//
// # Types
//
// This package does not import gocron.
package gocronlock
