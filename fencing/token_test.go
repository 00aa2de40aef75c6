package fencing_test

import (
	"testing"

	"github.com/pglock/pglock-go/fencing"
)

func TestFenceString(t *testing.T) {
	t.Parallel()
	if s := (fencing.Fence{Schema: "s", Name: "a@b", Token: 7}).String(); s != "a@b@7" {
		t.Error(s)
	}
}
