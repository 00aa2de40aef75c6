// Package pgtest gives the tests of every package a PostgreSQL server, and schemas, databases and pools on it.
//
// All packages of one "go test ./..." share a server, see package testserver. A test therefore works in a schema or
// database of its own, and a test that stops or crashes a server starts a private one.
//
//	func TestMain(m *testing.M) { pgtest.Main(m) }
//
//	func TestSomething(t *testing.T) {
//		t.Parallel()
//		pool := pgtest.Pool(t)
//		schema := pgtest.Schema(t, pool)
//		…
//	}
//
// Without a server tests fail. They never skip: a green run means that the tests ran.
//
// All functions may be called from parallel tests.
package pgtest
