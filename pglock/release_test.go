package pglock_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pglock/pglock-go/fencing"
	"github.com/pglock/pglock-go/internal/locktest"
	"github.com/pglock/pglock-go/internal/timing"
	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/internal/backend"
)

// TestAReleaseOfSeveralKindsIsRepeated: the statement for one kind is done, and that for the other has to
// be repeated, because somebody holds the row for longer than it waits. That is no loss of the first.
func TestAReleaseOfSeveralKindsIsRepeated(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.open()
	l := held(t, c.All(c.Lock("m"), c.Semaphore("n", 2)))
	tx := begin(t, f)
	_, err := tx.Exec(t.Context(), f.named("SELECT FROM pglock.distributed_locks WHERE name = 'n' FOR NO KEY UPDATE"))
	must(t, err)
	released := make(chan error, 1)
	go func() { released <- l.Release(t.Context()) }()
	until(f, "the first name is free", 1, "SELECT count(*) FROM pglock.distributed_locks WHERE name = 'm' AND holder IS NULL")
	rest(t, 2*timing.LockTimeout)
	must(t, tx.Rollback(t.Context()))
	check(t, <-released)
	f.none("grants are left", grants)
}

func TestReleaseIsIdempotent(t *testing.T) {
	inBubble(t, func(t *testing.T, f fake) {
		c := f.open()
		l := try(t, c, "n")
		var wg sync.WaitGroup
		for range 10 {
			wg.Go(func() { release(t, l) })
		}
		wg.Wait()
		next := try(t, c, "n")
		release(t, l) // again, after another client has acquired the lock
		if next.Err() != nil || f.row("n").Token != next.Token() {
			t.Error("a repeated release touched another grant")
		}
		release(t, next)
	})
}

func TestReleaseWithoutAServer(t *testing.T) {
	inBubble(t, func(t *testing.T, f fake) {
		proxy, far := f.proxied()
		c := far.open()
		l := try(t, c, "n")
		proxy.Refuse(true)
		proxy.Sever()
		ctx := bounded(t, 200*time.Millisecond)
		fails(t, "while the server is away", l.Release(ctx), context.DeadlineExceeded)
		ends(t, "the context is done all the same", l.Done())
		proxy.Refuse(false)
		release(t, l) // joins the attempt in progress, or tries anew
		release(t, try(t, c, "n"))
	})
}

// TestP14_ReleaseAnswerLost: the first attempt was applied, and the second one finds that out, also
// if another client has the lock by then.
func TestP14_ReleaseAnswerLost(t *testing.T) {
	inBubble(t, func(t *testing.T, f fake) {
		proxy, far := f.proxied()
		c := far.open()
		other := f.open()
		for _, taken := range []bool{false, true} {
			release(t, try(t, c, "n")) // the statements are prepared
			l := try(t, c, "n", pglock.WithRenewEvery(0))
			proxy.DropReplies()
			released := make(chan error, 1)
			go func() { released <- l.Release(t.Context()) }()
			synctest.Wait()
			f.empty("n") // the release is applied
			var next *pglock.Lease
			if taken {
				next = try(t, other, "n")
			}
			proxy.Heal()
			proxy.Sever()
			if err := <-released; err != nil {
				t.Errorf("taken over meanwhile: %v: Release: %v", taken, err)
			}
			if next != nil {
				release(t, next)
			}
		}
		// A call fails for lack of an answer. Another one, much later, finds out that it was applied.
		release(t, try(t, c, "n"))
		l := try(t, c, "n", pglock.WithRenewEvery(0))
		proxy.DropReplies()
		fails(t, "without an answer", l.Release(t.Context()), pglock.ErrUnavailable)
		f.empty("n")
		proxy.Heal()
		proxy.Sever()
		release(t, l)
	})
}

// TestReleaseDuringARenewal: a renewal in progress when its lease is released does not cause a
// loss, and does not revive the lease.
func TestReleaseDuringARenewal(t *testing.T) {
	inBubble(t, func(t *testing.T, f fake) {
		c := f.slow().open(pglock.WithTTL(5*time.Second), pglock.WithRenewEvery(roundTrip/2)) // one is nearly always in progress
		for i := range 25 {
			l := acquire(t, c, "n")
			rest(t, 10*roundTrip+time.Duration(i)*roundTrip/10)
			check(t, l.Err())
			release(t, l)
			f.empty("n")
		}
		rest(t, time.Second)
		f.empty("n")
	})
}

// TestI9_ALoneReleaserLeaves: the release continues without its caller, and ends when the server
// resumes.
func TestI9_ALoneReleaserLeaves(t *testing.T) {
	inBubble(t, func(t *testing.T, f fake) {
		proxy, far := f.proxied()
		l := try(t, far.open(pglock.WithTTL(time.Hour)), "n")
		proxy.Cut()
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		began := time.Now()
		err := l.Release(ctx)
		atMost(t, 100*time.Millisecond+timing.CancelGrace, "Release", began)
		if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "not done yet") {
			t.Errorf("told %v", err)
		}
		ends(t, "the lease's own context is done", l.Done())
		proxy.Heal()
		rest(t, timing.StatementBound)
		f.empty("n")
		release(t, l) // it has been released
	})
}

// firstLost is a store that loses the first answer to a release of several names.
type firstLost struct {
	backend.Store
	releases *int
}

func (s firstLost) ReleaseBatch(ctx context.Context, batch []fencing.Fence, minHold []time.Duration) (map[fencing.Fence]bool, error) {
	notified, err := s.Store.ReleaseBatch(ctx, batch, minHold)
	if *s.releases++; *s.releases == 1 {
		return nil, io.ErrUnexpectedEOF
	}
	return notified, err
}

// TestManyNamesWithMinHoldAreReleasedOverASlowPath: a release of many names is one statement, whether the
// caller or Close ends the lease. If its answer is lost, the client asks once which grants are left.
func TestManyNamesWithMinHoldAreReleasedOverASlowPath(t *testing.T) {
	t.Parallel()
	byRelease := func(ctx context.Context, _ *pglock.Client, l *pglock.Lease) error { return l.Release(ctx) }
	for name, tc := range map[string]struct {
		end  func(ctx context.Context, c *pglock.Client, l *pglock.Lease) error
		lost bool // the first answer
	}{
		"Release":   {end: byRelease},
		"Close":     {end: func(ctx context.Context, c *pglock.Client, _ *pglock.Lease) error { return c.Close(ctx) }},
		"no answer": {end: byRelease, lost: true},
	} {
		bubbles(t, name, func(t *testing.T, f fake) {
			const minHold = time.Hour
			far, releases := f.slow(), 0
			if tc.lost {
				far = far.through(func(s backend.Store) backend.Store { return firstLost{s, &releases} })
			}
			c := far.open(pglock.WithTTL(10 * time.Minute))
			names := make([]string, 128)
			for i := range names {
				names[i] = fmt.Sprint("n", i)
			}
			l := held(t, locktest.All(c, names...), pglock.WithMinHold(minHold))
			granted, began := f.row(names[0]).AcquiredAt, time.Now()
			check(t, tc.end(t.Context(), c, l))
			atMost(t, 10*roundTrip+timing.FirstPause, "the release", began)
			if tc.lost && releases > 2 {
				t.Errorf("%d release statements", releases)
			}
			for _, name := range names {
				if row := f.row(name); row.Held() && row.Holder != "" || f.expiry(name).Sub(granted) != minHold {
					t.Errorf("%+v", row)
				}
			}
		})
	}
}
