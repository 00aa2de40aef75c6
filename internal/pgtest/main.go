package pgtest

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/pglock/pglock-go/internal/testserver"
)

// minParallel is the least number of tests of a package that run at once. Most of their time they
// wait for leases to expire and for servers to answer.
const minParallel = 6

// Main runs the tests and exits. The process fails if a test left a goroutine behind, except those
// that ignored names by their function: some libraries never end theirs. TestMain calls it.
func Main(m *testing.M, ignored ...string) {
	testserver.Hook()
	if !flag.Parsed() { // the flag -parallel takes precedence
		_ = flag.Set("test.parallel", strconv.Itoa(max(minParallel, runtime.GOMAXPROCS(0))))
	}
	options := []goleak.Option{goleak.Cleanup(func(status int) {
		if err := errors.Join(dropUsed(), testserver.Close()); err != nil {
			fmt.Fprintln(os.Stderr, err)
			status = max(status, 1)
		}
		os.Exit(status)
	})}
	for _, function := range ignored {
		options = append(options, goleak.IgnoreTopFunction(function))
	}
	goleak.VerifyTestMain(m, options...)
}

// Patience is how long a test waits for what must come. It is no limit of what the test shows: a machine that
// stands still for a minute fails nothing.
const Patience = 5 * time.Minute

// Eventually polls until cond returns true. It fails the test after Patience, with a message that has what. Only the
// test's own goroutine may call it.
func Eventually(tb testing.TB, what string, cond func() bool) {
	tb.Helper()
	if !testserver.Poll(context.Background(), Patience, cond) && !cond() { // on a slow machine the last look was long ago
		tb.Fatalf("not within %v: %s", Patience, what)
	}
}
