package pgtest

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/pglock/pglock-go/internal/testserver"
)

// Main is what TestMain calls. It runs the tests, fails when one of them left a goroutine behind, and exits.
func Main(m *testing.M) {
	testserver.Hook()
	goleak.VerifyTestMain(m)
}
