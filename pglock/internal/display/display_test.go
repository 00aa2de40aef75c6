package display_test

import (
	"errors"
	"maps"
	"testing"
	"time"

	"github.com/pglock/pglock-go/fencing"
	"github.com/pglock/pglock-go/pglock/inspect"
	"github.com/pglock/pglock-go/pglock/internal/display"
)

// TestPace: a screen rests a hundred times as long as its reads take, but neither after a failure
// nor after one read that outlasted an outage.
func TestPace(t *testing.T) {
	t.Parallel()
	var p display.Pace
	down := errors.New("database unavailable")
	for i, read := range []struct {
		took time.Duration
		err  error
		want time.Duration
	}{
		{300 * time.Millisecond, nil, 30 * time.Second}, // nothing is known but this
		{10 * time.Millisecond, nil, time.Second},
		{5 * time.Second, down, display.AfterFailure},
		{time.Millisecond, down, display.AfterFailure},
		{4 * time.Second, nil, time.Second}, // the server answers again
		{20 * time.Millisecond, nil, 2 * time.Second},
		{400 * time.Millisecond, nil, 2 * time.Second},
		{300 * time.Millisecond, nil, 30 * time.Second}, // it is slow
	} {
		if got := p.Rest(read.took, read.err); got != read.want {
			t.Errorf("read %d: %v, want %v", i, got, read.want)
		}
	}
}

// TestOverdue: whatever its TTL is, a grant that is renewed in time is never overdue, and one that
// is not is overdue before it expires, however late the screen is opened.
func TestOverdue(t *testing.T) {
	t.Parallel()
	began := time.Date(2026, 11, 27, 9, 0, 0, 0, time.UTC)
	for _, ttl := range []time.Duration{time.Second, 3 * time.Second, 30 * time.Second, time.Hour} {
		for _, every := range []time.Duration{100 * time.Millisecond, 2 * time.Second, 33 * time.Second} {
			for _, opened := range []time.Duration{0, ttl / 4, ttl / 2, ttl * 9 / 10} { // after the last renewal
				r := display.Renewals{}
				for at := time.Duration(0); at < 3*ttl; at += every {
					age := at % (ttl / 3) // it is renewed when two thirds are left
					lock := inspect.Lock{Holder: "h", Token: 1, Remaining: ttl - age + at%7*time.Millisecond}
					if got := r.Overdue(began.Add(at), lock); len(got) > 0 {
						t.Fatalf("TTL %v, read every %v: renewed in time, and after %v overdue for %v", ttl, every, at, got)
					}
				}
				r = display.Renewals{}
				var late time.Duration
				var overdue map[fencing.Token]time.Duration
				for at := opened; at < ttl; at += every { // its holder is suspended
					lock := inspect.Lock{Kind: inspect.RWLock, Grants: []inspect.Grant{{Token: 7, Remaining: ttl - at + at%7*time.Millisecond}}}
					if overdue = r.Overdue(began.Add(at), lock); len(overdue) > 0 && late == 0 {
						late = at
					}
				}
				half := (opened + ttl + time.Second) / 2
				if half+every < ttl && (late <= half || late > half+every+10*time.Millisecond) {
					t.Errorf("TTL %v, read every %v from %v on: overdue after %v", ttl, every, opened, late)
				}
			}
		}
	}
	r := display.Renewals{}
	r.Overdue(began, inspect.Lock{Holder: "h", Token: 1, Remaining: time.Minute})
	if got := r.Overdue(began.Add(45*time.Second), inspect.Lock{Holder: "h", Token: 1, Remaining: 15 * time.Second}); !maps.Equal(got, map[fencing.Token]time.Duration{1: 45 * time.Second}) {
		t.Errorf("%v", got)
	}
	if r.Overdue(began.Add(2*time.Minute), inspect.Lock{}); len(r) > 0 {
		t.Errorf("expired grants are kept: %v", r)
	}
}
