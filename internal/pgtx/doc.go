// Package pgtx runs statements in transactions that belong to the caller.
//
// pgx closes a connection whose context ends in the middle of a statement, and the transaction
// is lost with it. A caller's transaction must survive a lock that it did not get. So this
// package cancels statements on the server instead, and puts what may fail into a savepoint.
package pgtx
