package pgtest_test

import (
	"fmt"
	"runtime"
	"testing"
)

// failProbe takes a failure for itself, so that a test can look at it.
type failProbe struct {
	testing.TB
	message string
}

func (p *failProbe) Fatalf(format string, args ...any) {
	p.message = fmt.Sprintf(format, args...)
	runtime.Goexit()
}
