// Package pgtest gives tests a PostgreSQL server, and schemas, databases, roles and pools on it.
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
// All tests share one server, so each test works in a schema or database of its own. A test that
// stops or crashes a server starts a private one with Server. Package testserver says where servers
// come from.
//
// Tests fail without a server. NeedTool skips a test that lacks another tool, such as PgBouncer:
// "make test" counts and names these tests in its last line, and with CI=true they fail.
//
// All functions may be called from parallel tests.
package pgtest
