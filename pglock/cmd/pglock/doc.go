// Command pglock runs programs under a distributed lock in PostgreSQL, and shows and ends locks.
// docs/reference/cli.md lists its commands with their flags and exit statuses.
//
// # A run
//
//	find the command ── not found ──▶ 127, not executable: 126
//	       │
//	connect ── unreachable, tables or rights missing ──▶ 69
//	       │
//	acquire the lock ── held: print the holder, wait ── --wait is over ──▶ 75, or --busy-status
//	       │ granted                              └──── interrupted ──▶ 128 + signal
//	start the command in its own process group ◀── signals are forwarded
//	       │                           │
//	       │ ends                      └── the lease is lost: TERM to all its processes,
//	       │                               KILL after --grace, wait ──▶ 76
//	release the lock, for at most 5 s
//	       │
//	the command's status, or 128 + n if signal n ended it
//
// # Guarantees
//
// While COMMAND runs, no other holder is granted the lock. If the lease can't be renewed, the
// command gets TERM so early that its grace ends before the server lets the lease expire. For this,
// --grace must be less than half of --ttl. For a suspended pglock this holds on Linux: see Limits.
//
// pglock ends within 5 s of the command, or of an interruption, also if the server hangs.
//
// On Linux and Windows "the command" includes all processes that it has started, in any process
// group or session, and a killed pglock ends them too: package child says how. On other systems a
// loss ends the command's process group only.
//
// # Limits
//
// The help of pglock run says what becomes of processes in the background, and of the command when
// pglock is suspended or killed. On systems other than Linux, a suspended pglock's command runs on
// beside the next holder. Fence writes that must not come late, with PGLOCK_TOKEN.
//
// If pglock and its supervisor are suspended or killed at the same time, or one of each, some of
// the processes run on: package child has the cases. A command that gains privileges when it starts
// (sudo) is not killed with the supervisor, and may refuse signals. On a machine so busy that the
// supervisor does not run within a twentieth of --ttl, a command that ignores TERM may be killed
// late.
package main
