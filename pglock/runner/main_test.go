package runner_test

import (
	"os"
	"testing"

	"github.com/pglock/pglock-go/internal/pgtest"
)

func TestMain(m *testing.M) {
	if form := os.Getenv(runVariable); form != "" {
		if err := runReplica(form); err != nil {
			os.Stderr.WriteString(err.Error())
			os.Exit(1)
		}
		os.Exit(0)
	}
	pgtest.Main(m)
}
