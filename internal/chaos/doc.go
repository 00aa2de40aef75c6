// Package chaos tests the promises of all kinds of locks under faults. It has only tests, for Linux.
//
//	test ── SIGSTOP, SIGKILL ──▶ worker ── Proxy ──▶ server ◀── kill, pause, VACUUM FULL … ── test
//	  ▲                            │                    │
//	  └──── records of calls ──────┘                    └──▶ ledger, log of grants
//
// Workers are processes with several goroutines. They hold leases, permits of a semaphore and a
// readers-writer lock, and write a ledger under guard. A nemesis injects faults meanwhile. Then the
// test judges three accounts of what happened:
//
//   - the workers' records: calls with the system's monotonic clock, which all processes share
//   - the ledger: what was written, in the order of the commits
//   - the log of grants, which triggers write: grants, renewals and ends with the server's clock
//
// The histories must be linearizable, by porcupine: see model. The other promises are invariants: see
// verdict. Each nemesis runs a second time as a control, with workers that ignore the end of their
// leases and write without a guard, or that write without a lock. The control must show violations.
//
// PGLOCK_CHAOS=1 runs every nemesis in full length, PGLOCK_CHAOS_SEED repeats the choices of a run.
package chaos
