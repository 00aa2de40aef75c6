//go:build race

package pglock_test

import "math"

func init() { mostWaiting = math.MaxInt } //nolint:gochecknoinits // the race detector's frames are larger
