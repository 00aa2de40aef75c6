package pglock_test

import (
	"sync"
	"testing"
	"time"

	"github.com/pglock/pglock-go/pglock"
)

// TestAReleaseRequestReachesTheHolder: before and after it, by any number of callers. The lease is
// held until the holder releases it. The first reason counts.
func TestAReleaseRequestReachesTheHolder(t *testing.T) {
	t.Parallel()
	c := newFixture(t).open()
	l, unasked := try(t, c, "n"), try(t, c, "unasked")
	defer release(t, unasked)
	early := l.ReleaseRequested()
	select {
	case <-early:
		t.Error("the channel is closed before the request")
	default:
	}
	if reason := l.ReleaseReason(); reason != "" {
		t.Errorf("reason before the request: %q", reason)
	}
	var all sync.WaitGroup
	firsts := make(chan bool, 10)
	for range cap(firsts) {
		all.Go(func() { firsts <- pglock.RequestRelease(l, "deploy") })
	}
	all.Wait()
	close(firsts)
	n := 0
	for first := range firsts {
		if first {
			n++
		}
	}
	if n != 1 || pglock.RequestRelease(l, "another") {
		t.Errorf("%d first requests", n)
	}
	within(t, 10*time.Second, "the request", early)
	within(t, 10*time.Second, "the request, seen later", l.ReleaseRequested())
	if reason := l.ReleaseReason(); reason != "deploy" {
		t.Errorf("reason: %q", reason)
	}
	if err := l.Err(); err != nil {
		t.Errorf("the lease has ended: %v", err)
	}
	select {
	case <-unasked.ReleaseRequested():
		t.Error("another lease was requested")
	default:
	}
	release(t, l)
	if l = try(t, c, "n"); !pglock.RequestRelease(l, "again") {
		t.Error("the next lease of the name can't be requested")
	}
	within(t, 10*time.Second, "a request that nobody waited for", l.ReleaseRequested())
	release(t, l)
}

func TestAReleaseRequestAfterTheEndIsIgnored(t *testing.T) {
	t.Parallel()
	l := try(t, newFixture(t).open(), "n")
	release(t, l)
	if pglock.RequestRelease(l, "late") {
		t.Error("the request was delivered to a lease that has ended")
	}
	select {
	case <-l.ReleaseRequested():
		t.Error("the channel is closed")
	default:
	}
}
