// Package ticks runs a job once per tick in a fleet of any size, though the clocks of its machines differ, and
// lets another machine go on when the one that runs dies.
//
//	job, err := ticks.New(client, "nightly-report")
//	...
//	err = job.Every(ctx, time.Minute, func(ctx context.Context, l *pglock.Lease) error { ... })
//
// Packages gocronlock and cronlock build on it, for the schedulers go-co-op/gocron and robfig/cron.
//
// # Which tick it is
//
// A tick is known by the time for which it was scheduled: 12:00:00 is 12:00:00 on every machine, whenever that is
// there by its clock. The last tick that was run is recorded in the database. So a machine whose clock is ahead runs
// 12:00:00 early, and one that comes to it later, by a second or half an hour, finds it done.
//
// The other way, to keep the lock for a minimum time after the run, was not taken: the time must be longer than
// clocks differ and shorter than a tick, so there are schedules for which it is wrong both ways, and a
// holder that dies early must keep it all the same.
//
// # One tick
//
//	done already? ── yes ──▶ ErrDone: one short transaction, rolled back
//	     │
//	wait for the job's lease (its holder runs this tick, or one before)
//	     │
//	done meanwhile? ── yes ──▶ ErrDone
//	     │
//	run, under the lease's context
//	     │
//	record the tick, as the lease's holder and only forward; release
//
// A tick that is recorded is never run again. One that is not, because its runner died or lost its lease, is run by
// somebody who waits for the lease: after the lease's TTL. So a tick is completed once, and may have been begun before
// by one who did not complete it. What must not happen twice even then goes into a transaction with [pglock.Lease.Guard].
//
// Ticks of a job never overlap, and are run in order: one that comes while an earlier one runs waits for it, for as
// long as WithWait says. A run that fails has run: its error goes to the caller, and the tick is recorded. One that
// returns an error because its context is done is not: somebody else runs it.
//
// # What it does not
//
//   - A tick that comes when no machine is up is not made up for.
//   - A clock that is ahead of the database's by more than a minute is refused (ErrClock): the ticks that it
//     runs would be done for all others.
//   - The job's writes are not fenced by themselves: the lease is given to the job for that.
package ticks
