//go:build unix

package main

import (
	"flag"
	"os"
	"testing"

	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/internal/testserver"
)

// demoVariable makes the test program the demo.
const demoVariable = "PGLOCK_DEMO_TEST"

// TestMain lets the tests start this program as the demo, and the demo as a worker.
func TestMain(m *testing.M) {
	testserver.Hook()
	if job, found := os.LookupEnv(workerVariable); found {
		os.Exit(work(job, ordersFrom(os.Stdin), os.Stdout, os.Stderr))
	}
	if os.Getenv(demoVariable) != "" {
		os.Exit(run(os.Stdout, os.Stderr))
	}
	_ = flag.Set("test.parallel", "6") // unless the command line has it: these tests wait most of their time
	if os.Getenv("GORACE") == "" {
		os.Setenv("GORACE", "atexit_sleep_ms=0") // otherwise each worker takes a second to end
	}
	pgtest.Main(m)
}
