// Demo shows on one machine what a lock is worth without fencing, and with it.
//
//	go run ./internal/demo
//
// Several processes deposit coins in one account: each reads the balance, thinks
// for a moment, and writes what it read plus one. Every deposit is entered in a
// second table as well, so that the truth is known.
//
//	act 1  no lock               deposits are lost
//	act 2  the lock alone        one holder is killed, another one is paused past
//	                             its TTL and woken: its late write loses deposits
//	act 3  the lock and a guard  the same, and the late writes are refused
//
// The parent starts workers (its own program again), hears from them by lines of
// JSON on their standard output, and gives them orders on their standard input:
//
//	parent ── assignment, begin, hold, resume, finish ──▶ worker
//	parent ◀── ready, granted, holding, wrote, … ──────── worker
//	parent ── SIGKILL, SIGSTOP, SIGCONT ────────────────▶ worker
//
// Nothing is left to luck: a worker that is to be killed or paused is held between
// its read and its write until the signal has reached it, and it is woken when
// the others' reports say that they have gone on.
//
// The exit status is 0 if all of that came about (see judge), 1 if not or if
// something failed, 130 if it was interrupted. However it ends, its workers end,
// its schema is dropped, and the server that it started, if any, goes with it.
package main
