// Package pgtx runs statements in transactions that belong to the caller.
//
// pgx closes a connection whose context ends in the middle of a statement, and the transaction
// is lost with it. A caller's transaction must survive a lock that it did not get. So this
// package cancels statements on the server instead, and puts what may fail into a savepoint:
//
//   - [Run], [RunOn] and [Uncanceled] run statements whose context may end;
//     [CleanUp] runs statements after it has ended.
//   - [Savepoint] sets, releases and restores a savepoint. Its Exec runs one statement inside
//     the savepoint, in one round trip where the transaction allows that.
//   - [LockTimeout], [WaitCause] and [Unusable] turn contexts into lock_timeout, and the
//     server's answers into errors.
//   - [LoginRejected] tells a server that rejects a login from one that is unreachable.
//   - [SQLState] and the constants name the server's errors.
package pgtx
