package main

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/pglock/pglock-go/internal/bench/trial"
)

func TestServersOfTheCacheComeFirst(t *testing.T) {
	home, path := t.TempDir(), t.TempDir()
	t.Setenv("HOME", home)
	t.Setenv("XDG_CACHE_HOME", "")
	t.Setenv("PATH", path)
	cache, err := os.UserCacheDir()
	p := peer{program: "server"}
	if got, err := p.find(); !errors.Is(err, trial.ErrMissing) {
		t.Errorf("found %s, %v", got, err)
	}
	for _, dir := range []string{path, filepath.Join(cache, "pglock-test", "peers")} {
		want := filepath.Join(dir, "server")
		if err := errors.Join(err, os.MkdirAll(dir, 0o700), os.WriteFile(want, nil, 0o700)); err != nil {
			t.Fatal(err)
		}
		if got, err := p.find(); got != want || err != nil {
			t.Errorf("found %s, want %s, %v", got, want, err)
		}
	}
}
