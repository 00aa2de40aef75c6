package fencing_test

import (
	"os"
	"testing"

	"github.com/pglock/pglock-go/internal/pgtest"
)

// holderVariable makes the test binary a holder of locks: see holder_test.go.
const holderVariable = "PGLOCK_TEST_HOLDER"

func TestMain(m *testing.M) {
	if os.Getenv(holderVariable) != "" {
		os.Exit(hold(os.Stdin, os.Stdout))
	}
	pgtest.Main(m)
}
