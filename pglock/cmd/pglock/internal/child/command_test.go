package child

import (
	"errors"
	"os"
	"os/exec"
	"slices"
	"testing"
)

func TestEnviron(t *testing.T) {
	t.Parallel()
	old := []string{"A=1", "B=2", "A=3", "=C:=D", "AB=4"}
	got := Environ(old, map[string]string{"A": "new"})
	if want := []string{"B=2", "=C:=D", "AB=4", "A=new"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if old[0] != "A=1" {
		t.Error("the original was changed")
	}
}

func TestFind(t *testing.T) {
	t.Parallel()
	if _, err := Find("no-such-command"); !errors.Is(err, exec.ErrNotFound) {
		t.Errorf("got %v", err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if path, err := Find(self); err != nil || path != self {
		t.Errorf("got %q, %v", path, err)
	}
}
