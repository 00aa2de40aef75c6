package leader_test

import (
	"os"
	"testing"

	"github.com/pglock/pglock-go/internal/pgtest"
)

func TestMain(m *testing.M) {
	if os.Getenv(workerVariable) != "" {
		os.Exit(work())
	}
	pgtest.Main(m)
}
