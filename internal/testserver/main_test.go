package testserver_test

import (
	"os"
	"testing"

	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/internal/testserver"
)

// TestMain lets the tests start this program again, in a role.
func TestMain(m *testing.M) {
	testserver.Hook()
	if role := os.Getenv(roleVariable); role != "" {
		os.Exit(play(role))
	}
	pgtest.Main(m)
}
