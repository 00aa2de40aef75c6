package leader_test

import (
	"testing"

	"github.com/pglock/pglock-go/internal/locktest"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/observe"
)

// TestTermsAreReported: a candidate is announced, and each term has a begin and one end.
func TestTermsAreReported(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	var r locktest.Results
	e := f.on(f.client(r.Observer()))
	if _, announced := r.Announced(observe.KindTerm); announced {
		t.Error("announced before it campaigns")
	}
	first := elect(t, e, "first")
	if last, announced := r.Announced(observe.KindTerm); !announced || last.Name != "e" {
		t.Errorf("%+v, %v", last, announced)
	}
	resign(t, first)
	resign(t, first)
	pgtest.Eventually(t, "the end is reported", func() bool { _, got := r.Of(observe.KindTerm); return got == "began ended" })
	second := elect(t, e, "second")
	ok(t, f.watcher.Revoke(t.Context(), "e", second.Lease().Token(), "a test"))
	pgtest.Eventually(t, "the loss is reported", func() bool {
		_, got := r.Of(observe.KindTerm)
		return got == "began ended began lost"
	})
	_ = second.Resign(t.Context()) // it is lost
	all, got := r.Of(observe.KindTerm)
	if len(all) != 4 {
		t.Fatal(got)
	}
	for i, e := range all {
		token := []*pglock.Lease{first.Lease(), second.Lease()}[i/2].Token()
		if e.Name != "e" || e.Token != token || (e.Duration > 0) != (i%2 == 1) || (e.Err != nil) != (i == 3) {
			t.Errorf("%d: %+v", i, e)
		}
	}
}
