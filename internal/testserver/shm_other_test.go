//go:build !linux

package testserver_test

import (
	"testing"

	"github.com/pglock/pglock-go/internal/testserver"
)

// Only Linux lists segments in a file.
func sharedMemoryOf(*testing.T, *testserver.Server) string { return "" }

func sharedMemoryExists(*testing.T, string) bool { return false }
