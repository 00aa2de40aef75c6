// Package testserver starts PostgreSQL servers for tests, benchmarks and the demo.
//
// # The shared server
//
// Get returns a server for all tests of a process. It tries these ways in order:
//
//	url     the server that PGLOCK_TEST_DATABASE_URL names
//	docker  a container of the image that PGLOCK_TEST_IMAGE names
//	local   the PostgreSQL programs of this machine
//	docker  a container of DefaultImage
//
// Containers need large modules, so a program in a module below this directory knows them, and this
// package runs it with "go run".
//
// A way that a variable asks for is the only one. If all ways fail, the error says why each of
// them failed and what helps. A missing server never skips a test.
//
// The command internal/testserver/run starts one server for all processes of a run:
//
//	go run ./internal/testserver/run go test ./...
//
// "make test" does so. Without that command, each test process starts a server of its own.
//
// # Private servers
//
// Start returns a server that the caller can pause, kill and restart, and that can have standbys.
//
// # Clean-up
//
// Close removes everything that the process started. A second process, the keeper, does the same
// when the process ends without Close, even by SIGKILL. The keeper is the same program again, so
// each program that uses this package calls Hook first in main. Dir puts other programs into its
// care. If the keeper is killed as well, the next process that starts a server removes the leftovers,
// and the next one that starts a container removes a container. Windows has no keeper.
//
// PostgreSQL refuses to run as root, so a server that root starts runs as the user postgres. All
// servers require a password and listen on 127.0.0.1. They trade durability for speed unless
// Options.Durable is set, and their files are in memory where Linux has plenty of it.
package testserver
