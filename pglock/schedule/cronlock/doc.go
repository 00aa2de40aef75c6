// Package cronlock connects package schedule to github.com/robfig/cron/v3: among any number of
// schedulers, one runs each tick of a job. If that scheduler dies, another one runs the same tick.
//
// [Func] makes a job from a function:
//
//	job, err := schedule.New(client, "report")
//	if err != nil {
//		return err
//	}
//	fiveMinutes, err := cron.ParseStandard("*/5 * * * *")
//	if err != nil {
//		return err
//	}
//	run, err := cronlock.Func(ctx, job, fiveMinutes, report)
//	if err != nil {
//		return err
//	}
//	c := cron.New()
//	c.Schedule(fiveMinutes, cron.FuncJob(run))
//	c.Start()
//
// [Wrapper] wraps a cron.Job for a cron.Chain:
//
//	once, err := cronlock.Wrapper[cron.Job](ctx, job, fiveMinutes)
//	if err != nil {
//		return err
//	}
//	c := cron.New()
//	c.Schedule(fiveMinutes, cron.NewChain(cron.Recover(cron.DefaultLogger), once).Then(existing))
//	c.Start()
//
// The schedule decides which tick is due: see package schedule. Failures are logged at Warn, by
// slog.Default() unless schedule.WithLogger sets another logger. A tick that another scheduler runs
// is not a failure.
//
// This package does not import cron: its types satisfy cron's interfaces. A type parameter names
// cron's own interface type where a function must return it.
package cronlock
