package testserver

// For the tests in package testserver_test.
var (
	Members = members
	Poll    = poll
)

const HomePrefix = homePrefix
