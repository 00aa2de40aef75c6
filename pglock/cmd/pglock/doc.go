// Command pglock runs programs under a distributed lock that PostgreSQL keeps.
//
//	pglock run [flags] NAME -- COMMAND [ARGUMENT...]
//	pglock migrate up | down --yes | version | force N
//	pglock version
//
// # A run
//
//	look the command up ── not there ──▶ 127, not executable: 126
//	       │
//	connect ── unreachable, tables missing ──▶ 69
//	       │
//	ask for the lock ── held: say by whom, wait ── --wait is over ──▶ 75
//	       │ granted                          └─── interrupted ──▶ 128 + signal
//	start the command in a process group of its own ◀── signals are passed on
//	       │                           │
//	       │ ends                      └── the lease is lost: TERM to the group,
//	       │                               KILL after --grace, wait ──▶ 76
//	release, 5 s at most
//	       │
//	the command's status, 128 + n if signal n ended it
//
// The other statuses are 64 for wrong usage and 70 for what nobody has foreseen.
//
// # What is guaranteed
//
// While COMMAND runs, nobody else is granted the lock. If the lease can't be
// renewed, the command is told to stop so early that its grace is over before
// the server lets the lease expire, as long as --grace is below half of --ttl.
//
// On Linux and Windows the command doesn't outlive a pglock that was killed; on
// Windows neither do its children. Elsewhere nothing ends it: the lock is free
// after the TTL, and the command may still run.
//
// # What is not
//
// The lock is held for the command, not for what it leaves behind: a process
// that it put into the background runs on, without the lock, and pglock says so.
// After a signal that ends programs, the rest of the group has --grace to end.
//
// A pglock that is stopped can't renew. When Ctrl-Z stops the command, pglock
// stops too; if the lease is over when both continue, the command is terminated.
// kill -STOP on pglock alone leaves the command running: nothing can be done until
// it continues. What must not be written late is fenced, with PGLOCK_TOKEN.
//
// On Linux a command that gains privileges when it starts (sudo) drops the tie
// to pglock's life, and may refuse its signals.
package main
