// Package testserver gives tests, benchmarks and the demo a PostgreSQL server, without anything set up by hand.
//
// # The shared server
//
// Get returns one server for all processes of a run. It tries, in this order:
//
//	url       the server that PGLOCK_TEST_DATABASE_URL names, as it is
//	docker    a container, if a Docker engine answers and has or can pull the image
//	local     the PostgreSQL programs of this machine
//	embedded  PostgreSQL's programs, downloaded by the module embedded-postgres
//
// A way that somebody asked for by name is the only one, and its failure an error. If all fail, one error tells each
// way, why it failed, and what helps. There is never a silent skip.
//
// "go test ./..." runs a process for each package, and the server must outlive each of them, but not the run. So the
// first process that asks starts a supervisor: its own program again, in a session of its own.
//
//	go test ──┬── pgtest.test ──── starts ───▶ supervisor ── starts ──▶ server
//	  owner   ├── fencing.test ── reads state.json ┘  │
//	    ▲     └── …                                   │
//	    └──────────── watches the life of ────────────┘
//
// The owner of the server is the go command, or the asking process itself if that wasn't started by one. When the
// owner is gone, by whatever end, the supervisor ends the server and removes every trace within a second. If the
// supervisor is killed too, the kernel ends a local server on Linux, and the next run sweeps the rest: directories
// and containers whose supervisor doesn't live.
//
// # Private servers
//
// Start returns a server that belongs to the calling process and can be paused, killed, restarted, followed by a
// standby and promoted. A keeper, again the same program, removes it if the process dies.
//
// # For programs that use this package
//
// Call Hook first in main or TestMain. Package pgtest does, and is what tests should use.
//
// PostgreSQL refuses root; when root runs the tests, local servers run as the user postgres. All servers need a
// password, a random one, and listen on 127.0.0.1. They trade durability for speed unless Options.Durable is set, and
// live in memory where Linux has plenty. On Windows local servers can't be started by administrators nor be paused.
package testserver
