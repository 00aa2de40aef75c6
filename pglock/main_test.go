package pglock_test

import (
	"os"
	"testing"

	"github.com/pglock/pglock-go/internal/pgtest"
)

func TestMain(m *testing.M) {
	if url := os.Getenv(adopterVariable); url != "" {
		os.Exit(runAdopter(url, os.Stdin, os.Stdout))
	}
	if in := os.Getenv(philosophersVariable); in != "" {
		os.Exit(runPhilosophers(in, os.Stdout))
	}
	pgtest.Main(m)
}
