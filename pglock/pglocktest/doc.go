// Package pglocktest tests programs that use package pglock, with a database or without one.
//
//	func TestLateWrite(t *testing.T) {
//		k := pglocktest.Fake(t) // or pglocktest.New(t, pool)
//		service := NewService(k.Client)
//		service.BeforeWrite = func(l *pglock.Lease) { k.Pause(l) }
//		if err := service.Pay(t.Context(), "account:17"); !errors.Is(err, fencing.ErrStale) {
//			t.Errorf("a late write: %v", err)
//		}
//	}
//
// Both have a *pglock.Client, so the program needs no interface for its tests.
//
//	Fake   locks in memory: no database, a test takes microseconds, in a bubble of testing/synctest also one that
//	       waits for a TTL, for the ticks of a schedule, or for the next leader. Guards take the transactions of
//	       Locks.Begin.
//	New    locks in a database that the program's tests have anyway, with guards that the server checks, and
//	       all that needs SQL
//
// # Faults
//
//	Busy          another process holds the lock
//	Elect         another process becomes the leader
//	Tick          another process has run the tick of a schedule
//	Crash         another process died during the effect of an idempotency key
//	Lose          the lease ends while its holder works: its context is done
//	Pause         the holder was suspended for longer than its TTL, and does not know: its guards fail
//	Expire        the holders of a name died a TTL ago
//	Advance       time passes on the server
//	Unavailable   the server can't be reached
//
// # What a test notices
//
// A lease that is not released, and a call that still waits, fail a test at its end. Locks.Events has what
// has happened, in order. Functions that must run under a lock call [pglock.Require], and those of a schedule
// find their tick by schedule.TickFromContext, so both can be called by themselves.
package pglocktest
