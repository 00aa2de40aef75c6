package testserver_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pglock/pglock-go/internal/testserver"
)

// sharedMemoryOf returns the number of a running server's System V segment.
func sharedMemoryOf(t *testing.T, server *testserver.Server) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(filepath.Dir(server.LogFile()), "data", "postmaster.pid"))
	if err != nil {
		t.Fatal(err)
	}
	segment := strings.Fields(strings.Split(string(text), "\n")[6])[1]
	if !sharedMemoryExists(t, segment) {
		t.Fatal("the server has no shared memory to look for")
	}
	return segment
}

func sharedMemoryExists(t *testing.T, segment string) bool {
	t.Helper()
	text, err := os.ReadFile("/proc/sysvipc/shm")
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range strings.Split(string(text), "\n") {
		if fields := strings.Fields(line); len(fields) > 1 && fields[1] == segment {
			return true
		}
	}
	return false
}
