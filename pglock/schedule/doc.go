// Package schedule runs a job once per tick among any number of processes, although their clocks
// differ. If the process that runs a tick dies, another process takes the tick over.
//
//	job, err := schedule.New(client, "report")
//	...
//	err = job.Every(ctx, time.Minute, func(ctx context.Context, l *pglock.Lease) error { ... })
//
// Packages gocronlock and cronlock connect it to the schedulers go-co-op/gocron and robfig/cron.
//
// # Ticks
//
// A tick is identified by its scheduled time: 12:00:00 is the same tick on every machine. The
// database records the last tick that was run. A machine whose clock is ahead runs 12:00:00 early.
// A machine that reaches 12:00:00 later, by a second or by half an hour, finds it done.
//
// The alternative is to keep the lock for a minimum time after each run. It was rejected: this time
// must be longer than the difference between the clocks and shorter than the interval between two
// ticks. For some schedules no time is both. The lock also stays held after its holder has died.
//
// # One tick
//
//	already run? ── yes ──▶ ErrDone: one short transaction, rolled back
//	     │
//	wait for the job's lease ── time-out ──▶ ErrNotAcquired, with ErrRunning
//	     │                                   if the holder runs this tick
//	run meanwhile? ── yes ──▶ ErrDone
//	     │
//	run the function under the lease's context
//	     │
//	record the tick, guarded by the lease; release
//
// A tick that is recorded never runs again. A tick is not recorded if its runner died or lost the
// lease. Another process that waits for the lease then runs it, at the latest when the TTL is over.
// So each tick is completed once, but more than one process may have begun it. Use
// [pglock.Lease.Guard] in the transaction for writes that must not happen twice even then.
//
// Ticks of a job never overlap, and run in order. A tick that is due while an earlier one runs
// waits for it, up to the time of [WithWait]. A run that fails counts as run: the caller gets the
// error, and the tick is recorded. A run that fails because its context is done does not count:
// another process runs the tick.
//
// # Failures
//
// [Job.Every] and the schedulers' packages have no caller to return an error to. They log failures
// at Warn, by slog.Default() unless [WithLogger] sets another logger: the job's own error, a tick
// that could not be run, and a lost lease. If the database is stopped, each machine logs one line
// per tick. [WithReport] receives the results, for metrics. A tick that another process has run
// (ErrDone) or is running (ErrRunning) is not a failure: it is not reported, and logged at Debug. A
// tick that is skipped because an earlier one still runs is a failure.
//
// # Limits
//
//   - Ticks that are due while no machine is up are skipped, except the late ones that [Job.Every]
//     still runs.
//   - A machine whose clock is more than a minute ahead of the database's gets ErrClock. It would
//     run ticks too early, and record them for all others.
//   - The job's writes are not fenced automatically. The function gets the lease to guard them.
package schedule
