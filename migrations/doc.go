// Package migrations creates, updates and removes pglock's tables.
//
// The migrations are plain SQL files, in [FS]. golang-migrate runs them in any schema, also in one
// whose name needs quoting. A service calls [Up] when it starts, or an operator runs `pglock
// migrate up`. Any number of processes may do both at once:
//
//	read the version ── up to date ──▶ compare the objects, return nil
//	       │
//	no right to create? ──▶ ErrPrivilege, nothing changed
//	       │
//	can others put code into the schema? ──▶ ErrUntrusted, nothing changed
//	       │
//	acquire the lock (poll for a lock on the version table)
//	       │
//	golang-migrate: mark dirty, run the file in one transaction, mark clean
//
// A separate transaction holds the lock, so the lock ends with its connection. Waiters poll, so a
// process that stops waiting leaves nothing behind.
//
// # Failures
//
// A process that dies between "mark dirty" and "mark clean" leaves the version dirty. The file was
// then applied as a whole or not at all. [DirtyError] says which version the tables are at, and how
// to continue.
//
// The number of a version does not vouch for the objects of the schema: after a partial restore, or
// a change by hand, [Up] names those that are missing or differ, and changes nothing. More objects
// do no harm.
//
// If the record of the version is empty, as after a tool has truncated all tables, the version is
// derived from the functions of the schema.
//
// # Upgrade and roll back
//
// Replicas of two releases can work beside each other on the tables of the newer one, because a
// migration only adds to what older programs use. Only a later release may remove what they use,
// and its migration then raises the number that the function pglock_oldest_client of the schema
// returns. A program that knows an older version than that number gets [ErrNewer] from [Up] and
// from pglock.Open, and leaves the tables as they are; any other one works. So a release is rolled
// back by deploying the previous program, without touching the tables. A newer program on older
// tables gets pglock.ErrSchema until [Up] has run.
//
// # Roles
//
// Functions in the schema can take part in a migration, and run with the rights of the role that
// migrates. So [Up], [Down] and [Force] refuse a schema that belongs to another role, in which
// another role may create objects, or in which it has left one ([ErrUntrusted]). Superusers and
// members of the migrating role are trusted, because they can act as that role anyway. The rights
// that ALTER DEFAULT PRIVILEGES gives others on new objects are revoked in each migration, and [Up]
// by the owner takes functions away from PUBLIC that a restore without roles has left open.
//
// A separate role may own the tables, so that services can't change them. It runs `pglock migrate
// up --grant-user SERVICE`, or calls [Up] with [WithUser]. [WithReader], [WithWriter] and
// [WithOwner] grant less: what it takes to look at locks, what a writer of guarded tables needs,
// and what the owner of protected tables needs (see package fencing).
//
// # A service's own migrations
//
// Package pglock/runner runs those under a lock, and package pglock/gooselock has locks for
// goose. Programs that only use locks do not need any of these packages: pglock imports none of
// them, so golang-migrate reaches only the programs that call it.
package migrations
