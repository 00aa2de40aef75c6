//go:build unix

package testserver

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestCheckReach(t *testing.T) {
	t.Parallel()
	closed := t.TempDir()
	inner := filepath.Join(closed, "inner")
	if err := os.Mkdir(inner, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(closed, 0o700); err != nil {
		t.Fatal(err)
	}
	stranger := &account{uid: 54321, gid: 54321}
	if err := stranger.checkReach(inner); err == nil || !strings.Contains(err.Error(), "TMPDIR") {
		t.Errorf("got %v, want advice about TMPDIR", err)
	}
	if err := stranger.checkReach("/usr"); err != nil {
		t.Errorf("a directory that is open to everybody: %v", err)
	}
	var nobodyElse *account
	if err := nobodyElse.checkReach(inner); err != nil {
		t.Errorf("without another account: %v", err)
	}
}
