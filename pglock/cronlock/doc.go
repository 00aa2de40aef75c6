// Package cronlock lets a fleet of schedulers of github.com/robfig/cron/v3 run each tick of a job once.
//
//	job, err := ticks.New(client, "report", ticks.WithReport(log))
//	...
//	schedule, err := cron.ParseStandard("*/5 * * * *")
//	...
//	run, err := cronlock.Func(ctx, job, schedule, report)
//	...
//	c.Schedule(schedule, cron.FuncJob(run))
//
// or, for what is a cron.Job already, with a wrapper for its chain:
//
//	once, err := cronlock.Wrapper[cron.Job](ctx, job, schedule)
//	...
//	c.Schedule(schedule, cron.NewChain(cron.Recover(logger), once).Then(existing))
//
// The schedule says which tick it is: see package ticks. This package does not import cron: its interfaces
// are met as they are, and told by a type parameter where a function must return one of them.
package cronlock
