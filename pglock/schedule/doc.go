// Package schedule runs a job once per tick among any number of processes, although their clocks
// differ. If the process that runs a tick dies, another process takes the tick over.
//
//	job, err := schedule.New(client, "nightly-report")
//	...
//	err = job.Run(ctx, schedule.Daily("03:00", time.Local), func(ctx context.Context, l *pglock.Lease) error { ... })
//
// [Every] and [Daily] make schedules, and a parsed cron expression is a [Schedule] too:
//
//	spec, err := cron.ParseStandard("0 3 * * 1-5") // github.com/robfig/cron/v3
//	...
//	err = job.Run(ctx, schedule.In(spec, berlin), makeReport)
//
// Choose by who has the timer:
//
//	Run       the job: it sleeps until each tick
//	RunDue    the caller: a crontab, a Kubernetes CronJob, another scheduler
//	Once      the caller, who also knows the tick
//	OncePer   no timer: once in a period, at any time
//	Trigger   an operator: an extra run now, by one of those above
//
// With a scheduler that has the timer, such as that of robfig/cron, spec is passed twice:
//
//	c.Schedule(spec, cron.FuncJob(func() { _ = job.RunDue(ctx, spec, makeReport) }))
//
// and with go-co-op/gocron:
//
//	task := func(ctx context.Context) error {
//		if err := job.RunDue(ctx, spec, makeReport); !schedule.Done(err) {
//			return err
//		}
//		return nil
//	}
//	_, err := s.NewJob(gocron.CronJob("0 3 * * 1-5", false), gocron.NewTask(task))
//
// The scheduler only says when to look, so one that was paused, or that calls too often, finds the
// tick done. A gocron.Locker can't do that, because it does not receive the tick and would derive
// it from the time of a call that is late. For a gocron.DailyJob, spec is Daily in the scheduler's
// location, and for a gocron.DurationJob of d it is Every(d), of whose ticks the first scheduler
// that calls runs each.
//
// The command `pglock run --tick` does the same for programs in other languages.
//
// # Ticks
//
// A tick is identified by its scheduled time: 12:00:00 is the same tick on every machine. The
// database records the last tick that was run. A machine whose clock is ahead runs 12:00:00 early.
// A machine that reaches 12:00:00 later, by a second or by half an hour, finds it done.
//
// To keep the lock for a minimum time after each run instead does not work for every schedule: this
// time must be longer than the difference between the clocks and shorter than the interval.
//
// # One tick
//
//	already run? ── yes ──▶ ErrDone: one short transaction, rolled back
//	     │
//	wait for the job's lease ── time-out ──▶ pglock.ErrNotAcquired, with ErrRunning
//	     │                                          if the holder runs this tick
//	run meanwhile? ── yes ──▶ ErrDone
//	     │
//	wait, if the tick has failed before; run the function under the lease's context
//	     │
//	record the tick, or a failure that is repeated, guarded by the lease; release
//
// A tick that is recorded never runs again. A tick is not recorded if its runner died or lost the
// lease. Another process that waits for the lease then runs it, at the latest when the TTL has
// passed. So each tick is completed once, but more than one process may have begun it. Use
// [pglock.Lease.Guard] in the transaction for writes that must not happen twice even then.
//
// # Long runs and missed ticks
//
// Ticks of a job never overlap, and run in order. A tick that is due while an earlier one runs
// waits for it. While one process runs a tick, the others wait until the next tick is due, to take
// the tick over if its runner dies: see [WithWait]. They hold no connection meanwhile.
//
// Of the ticks that were missed, because no process was up or because the tick before took long,
// the latest runs late, at once. The earlier ones are skipped, except those that are not later than
// the TTL plus 5 s. The first tick of a job that never ran is in the future. [WithMaxLate] bounds
// how late a tick may begin.
//
// # Days of 23 and 25 hours
//
// [Daily] and [In] have one rule for all days, which [In] states. [Every] counts in UTC and knows no
// such days, so every 24 hours is not daily. A cron expression without In leaves the rule to its
// parser: that of robfig/cron has no tick for a time that is skipped, and two for a time that comes
// twice.
//
// # Failures
//
// [Job.Run] and most schedulers have no caller to return an error to. Run and RunDue log failures
// at Warn: the job's own error, a lost lease, and a tick that could not be run, because the
// database is unreachable or an earlier tick still runs. [WithReport] receives the results, for
// metrics. A tick of another process ([Done]) is logged at Debug, and not reported.
//
// A run that fails counts as run, unless [WithRetry] has it repeated. Either way the database has the
// last failure of a job, which the view schedules shows until a later run succeeds.
//
// # Limits
//
//   - A machine whose clock is ahead by more than a minute runs no tick ([ErrClock]): it would run
//     ticks too early, and record them for all others.
//   - If the database's clock was ahead too and is set back, the last recorded tick is in the
//     future. Nothing says which of the ticks before it were run, so all of them fail with ErrClock
//     until that time, or until an operator deletes the row that the error names. Then the latest
//     tick that is due runs, although it may have run before.
//   - All processes must use the same schedule, in the same time zone. Run, RunDue and BeginDue
//     notice another zone ([ErrZone]), but not another schedule.
//   - The job's writes are not fenced automatically. The function gets the lease to guard them.
//   - While it waits for a tick, Run looks for an extra one by a short transaction every 10 s.
package schedule
