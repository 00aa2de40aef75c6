package adapters_test

import (
	"fmt"
	"os"
	"testing"

	"github.com/pglock/pglock-go/internal/pgtest"
)

func TestMain(m *testing.M) {
	if kind := os.Getenv(schedulerVariable); kind != "" {
		os.Exit(runScheduler(kind))
	}
	if settings := os.Getenv(clientWorkerVariable); settings != "" {
		fmt.Fprintln(os.Stderr, runClientWorker(settings))
		os.Exit(1)
	}
	pgtest.Main(m, "gorm.io/gorm/internal/lru.NewLRU[...].func1") // of GORM's cache of prepared statements
}
