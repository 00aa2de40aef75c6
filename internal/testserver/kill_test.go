package testserver_test

import (
	"os"
	"testing"

	"github.com/pglock/pglock-go/internal/testserver/process"
)

// killNow is kill -9 for a process that isn't our child.
func killNow(t *testing.T, id process.ID) {
	t.Helper()
	found, err := os.FindProcess(id.PID)
	if err != nil || !id.Alive() {
		t.Fatalf("process %v is gone: %v", id, err)
	}
	defer func() { _ = found.Release() }()
	if err := found.Kill(); err != nil {
		t.Fatal(err)
	}
}
