// Package gocronlock lets a fleet of schedulers of github.com/go-co-op/gocron/v2 run each tick of a job once.
//
//	locker, err := gocronlock.NewLocker[gocron.Lock](client, time.Minute)
//	...
//	s, err := gocron.NewScheduler(gocron.WithDistributedLocker(locker))
//	...
//	s.NewJob(gocron.CronJob("*/5 * * * *", false), gocron.NewTask(locker.Task(report)), gocron.WithName("report"))
//
// [Locker] has each tick run once, wherever, and goes on with the same tick when a runner dies; see package ticks for
// what that means and how it is done. [Elector] has one scheduler run everything: after its death ticks
// are missed until the lease has ended, and around the change one may be run by both. So prefer Locker.
//
// This package does not import gocron: its interfaces are met as they are. In Go a method that returns an interface of
// one package does not satisfy an interface of another that wants its own, so the Locker is told gocron's by a type
// parameter: NewLocker[gocron.Lock].
package gocronlock
