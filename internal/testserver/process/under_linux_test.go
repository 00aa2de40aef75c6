package process_test

import (
	"path/filepath"
	"testing"

	"github.com/pglock/pglock-go/internal/testserver/process"
)

func TestUnder(t *testing.T) {
	t.Parallel()
	cmd, info, _ := child(t)
	for _, dir := range []string{cmd.Dir, filepath.Dir(cmd.Dir)} {
		if under, err := process.Under(dir); err != nil || !contains(under, info.ID) {
			t.Errorf("under %s are %v, %v", dir, under, err)
		}
	}
	if under, err := process.Under(cmd.Dir[:len(cmd.Dir)-1]); err != nil || contains(under, info.ID) {
		t.Errorf("part of a name passes for the directory: %v, %v", under, err)
	}
}
