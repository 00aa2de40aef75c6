package child

import (
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
