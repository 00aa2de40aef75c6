// Package limits tests that nothing grows with the number of operations, and what many clients and
// waiters cost. It has only tests.
//
// TestChurn works with locks of every kind for seconds, with PGLOCK_CHAOS=1 for five minutes, and
// with PGLOCK_CHURN=1h for an hour. Between two rounds it lets all work end, and then takes a sample
// of what could leak: goroutines, heap, connections, rows, and the size of the tables.
package limits
