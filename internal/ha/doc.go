//go:build linux

// Command ha runs processes with locks and guarded writes on a cluster of three PostgreSQL servers
// that Patroni manages with etcd, while leaders are switched over, killed, paused and cut off. Then
// it checks the history of the processes: `make ha`.
//
// It needs Linux, root, and the programs of Debian's packages patroni, etcd-server and iproute2. Each
// server has a network namespace of its own, and so has the hub, which is this program, started again
// for each kind of replication, with etcd and most of the processes. One more process runs beside each
// server and knows only that server, so that it stays with an old primary that is cut off.
//
// # What is checked
//
//	order      a grant that was asked for after another one was reported has the larger token
//	exclusion  no holder trusts its lease when another one is granted the lock
//	stale      the guarded table has its writes in the order of tokens
//	kept       each write whose commit was reported is on the last primary
//
// With synchronous replication, all four hold. With asynchronous replication a failover may lose
// the last commits, so "kept" can't hold, and an old primary that does not know that it was replaced
// may still grant: such violations are counted. They show that the checks can fail. "stale" holds
// in both cases.
package main
