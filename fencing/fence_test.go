package fencing_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/pglock/pglock-go/fencing"
)

func TestFenceText(t *testing.T) {
	t.Parallel()
	for text, f := range map[string]fencing.Fence{
		"n@1":                         {Name: "n", Token: 1},
		"account:1@33":                {Name: "account:1", Token: 33},
		"a@b@7":                       {Name: "a@b", Token: 7},
		"@@7":                         {Name: "@", Token: 7},
		"5@9223372036854775807":       {Name: "5", Token: 1<<63 - 1},
		" \n漢+1@2":                    {Name: " \n漢+1", Token: 2},
		"n@1+other":                   {Schema: "other", Name: "n", Token: 1},
		"n@1+it%27s+a+%40+%2B+schema": {Schema: "it's a @ + schema", Name: "n", Token: 1},
	} {
		got, err := f.MarshalText()
		if string(got) != text || err != nil {
			t.Errorf("%#v became %q, %v", f, got, err)
		}
		if parsed, err := fencing.ParseFence(text); parsed != f || err != nil {
			t.Errorf("%q became %#v, %v", text, parsed, err)
		}
		asJSON, err := json.Marshal(map[string]fencing.Fence{"fence": f})
		var back map[string]fencing.Fence
		if err == nil {
			err = json.Unmarshal(asJSON, &back)
		}
		if back["fence"] != f || err != nil {
			t.Errorf("%s became %#v, %v", asJSON, back, err)
		}
	}
	if s := (fencing.Fence{Schema: "s", Name: "a@b", Token: 7}).String(); s != "a@b@7" {
		t.Error(s)
	}
	if text, err := (fencing.Fence{Schema: "pglock", Name: "n", Token: 1}).MarshalText(); string(text) != "n@1" || err != nil {
		t.Errorf("the default schema by its name: %q, %v", text, err)
	}
	for _, text := range []string{
		"", "n", "@", "n@", "@1", "n@0", "n@-1", "n@+1", "n@01", "n@ 1", "n@1 ", "n@1.5", "n@0x1", "n@9223372036854775808", "n@1_0", "n@１",
		"n@1+", "n@1+pglock", "n@1+a%20b", "n@1+%zz", "n@1+pg_x", "n@1+" + strings.Repeat("s", 64), "n@x+s",
		"\x00@1", "\xff@1", strings.Repeat("n", 513) + "@1",
	} {
		f := fencing.Fence{Name: "before", Token: 1}
		if err := f.UnmarshalText([]byte(text)); !errors.Is(err, fencing.ErrInvalidFence) || f != (fencing.Fence{Name: "before", Token: 1}) {
			t.Errorf("%q became %#v, %v", text, f, err)
		}
	}
	for _, f := range []fencing.Fence{{}, {Name: "n"}, {Name: "n", Token: -1}, {Token: 1}, {Name: "n", Token: 1, Schema: "pg_x"}} {
		if text, err := f.MarshalText(); !errors.Is(err, fencing.ErrInvalidFence) {
			t.Errorf("%#v became %q, %v", f, text, err)
		}
	}
}

// FuzzParseFence: what parses has one text, and that is what it was parsed from.
func FuzzParseFence(f *testing.F) {
	for _, seed := range []string{"n@1", "a@b@2+s", "@", "n@1+%41", "n@+1", "\xff@1"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		parsed, err := fencing.ParseFence(text)
		if err != nil {
			if !errors.Is(err, fencing.ErrInvalidFence) || parsed != (fencing.Fence{}) {
				t.Fatalf("%q: %#v, %v", text, parsed, err)
			}
			return
		}
		if again, err := parsed.MarshalText(); err != nil || string(again) != text {
			t.Fatalf("%q became %#v, and that %q, %v", text, parsed, again, err)
		}
	})
}
