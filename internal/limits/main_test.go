package limits

import (
	"os"
	"testing"

	"github.com/pglock/pglock-go/internal/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// long reports whether the tests run in full length, as in `make chaos`.
func long() bool { return os.Getenv("PGLOCK_CHAOS") != "" || os.Getenv(churnVariable) != "" }
