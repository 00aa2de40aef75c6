package ui

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pglock/pglock-go/pglock/inspect"
)

// reads counts reads that take some time, and none of which may overlap another.
type reads struct {
	took time.Duration
	mu   sync.Mutex
	keys []string
}

func (r *reads) of(t *testing.T, key string) func(context.Context) (any, error) {
	t.Helper()
	return func(ctx context.Context) (any, error) {
		if !r.mu.TryLock() {
			t.Error("two reads at a time")
		}
		defer r.mu.Unlock()
		select {
		case <-time.After(r.took):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		r.keys = append(r.keys, key)
		return key, nil
	}
}

// TestViewersShareReadings: those who wait for the same page at the same time, and nobody gets one that
// began before the request.
func TestViewersShareReadings(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, r := newSampler(), &reads{took: time.Second}
		var all sync.WaitGroup
		for range 10 {
			all.Go(func() {
				asked := time.Now()
				if got := s.read(t.Context(), "a", asked, r.of(t, "a")); got.err != nil || got.value != "a" || got.began.Before(asked) {
					t.Errorf("%+v", got)
				}
			})
			time.Sleep(50 * time.Millisecond) //nolint:forbidigo // the clock is that of the test
		}
		all.Wait()
		if len(r.keys) != 2 { // the first, and one for all who came while it was running
			t.Errorf("%d reads", len(r.keys))
		}
		s.read(t.Context(), "a", time.Now(), r.of(t, "a"))
		if len(r.keys) != 3 {
			t.Errorf("an old reading is shown: %d reads", len(r.keys))
		}
	})
}

// TestUpdatesAreRare: those of all open pages take a hundredth of the time, in turns, and pages that are
// opened do not wait for that.
func TestUpdatesAreRare(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, r := newSampler(), &reads{took: 100 * time.Millisecond}
		ctx, stop := context.WithCancel(t.Context())
		var all sync.WaitGroup
		for _, key := range []string{"a", "a", "b", "c"} {
			all.Go(func() {
				for seen := time.Now(); ctx.Err() == nil; {
					time.Sleep(interval) //nolint:forbidigo // the clock is that of the test
					if got := s.update(ctx, key, seen, r.of(t, key)); got.err == nil {
						if got.value != key || !got.began.After(seen) {
							t.Errorf("%+v after %v", got, seen)
						}
						seen = got.began
					}
				}
			})
		}
		time.Sleep(10 * time.Minute) //nolint:forbidigo // the clock is that of the test
		opened := time.Now()
		s.read(t.Context(), "d", opened, r.of(t, "d"))
		if waited := time.Since(opened); waited > 2*r.took {
			t.Errorf("a page opens after %v", waited)
		}
		stop()
		all.Wait()
		if n := len(r.keys); n < 55 || n > 62 {
			t.Errorf("%d reads of 0.1 s in 10 minutes", n)
		}
		for _, key := range []string{"b", "c"} {
			if n := len(slices.DeleteFunc(slices.Clone(r.keys), func(k string) bool { return k != key })); n < len(r.keys)/5 {
				t.Errorf("%d of %d reads are for %s", n, len(r.keys), key)
			}
		}
	})
}

// TestUpdatesAfterAnOutage: while the database hangs and each read fails after five seconds, the
// page has the last value, and it is updated within seconds once the database answers again, also
// by a read that outlasted the outage.
func TestUpdatesAfterAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, began := newSampler(), time.Now()
		hangs, answers := began.Add(time.Minute), began.Add(2*time.Minute)
		load := func(context.Context) (any, error) {
			now := time.Now()
			time.Sleep(time.Millisecond) //nolint:forbidigo // the clock is that of the test
			if now.After(hangs) && now.Before(answers) {
				ends := time.After(min(5*time.Second, answers.Sub(now)+10*time.Millisecond))
				if <-ends; time.Now().Before(answers) {
					return nil, errors.New("database unavailable")
				}
			}
			return time.Now(), nil
		}
		var old time.Time
		for seen := began; seen.Before(answers); {
			time.Sleep(interval) //nolint:forbidigo // the clock is that of the test
			r := s.update(t.Context(), "a", seen, load)
			seen = r.began
			if value := r.value.(time.Time); r.err != nil && (!value.Equal(old) || value.After(hangs.Add(interval)) || r.asOf.After(value)) {
				t.Fatalf("%v after an outage of %v: the last value was %v, and this one is %+v", seen, seen.Sub(hangs), old, r)
			} else if r.err == nil {
				old = value
			}
		}
		if late := time.Since(answers); late > 10*time.Second {
			t.Errorf("the first update comes %v after the outage", late)
		}
		for range 10 { // all of them, and not only the first one
			asked := time.Now()
			if r := s.update(t.Context(), "a", asked, load); r.err != nil || time.Since(asked) > 2*interval {
				t.Errorf("%v after the outage an update takes %v: %v", asked.Sub(answers), time.Since(asked), r.err)
			}
			time.Sleep(interval) //nolint:forbidigo // the clock is that of the test
		}
		if r := s.read(t.Context(), "b", time.Now(), func(context.Context) (any, error) { return nil, context.DeadlineExceeded }); r.err == nil || r.value != nil {
			t.Errorf("a page that was never read: %+v", r)
		}
	})
}

// TestFastUpdates: a page is updated every two seconds at most.
func TestFastUpdates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, r := newSampler(), &reads{took: time.Millisecond}
		ctx, stop := context.WithTimeout(t.Context(), time.Minute)
		defer stop()
		for seen := time.Now(); ctx.Err() == nil; {
			time.Sleep(interval) //nolint:forbidigo // the clock is that of the test
			seen = s.update(ctx, "a", seen, r.of(t, "a")).began
		}
		if n := len(r.keys); n < 28 || n > 30 {
			t.Errorf("%d reads in a minute", n)
		}
	})
}

// TestViewersWhoLeave end their read, and their error is nobody else's.
func TestViewersWhoLeave(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, r := newSampler(), &reads{took: time.Second}
		ctx, leave := context.WithCancel(t.Context())
		var all sync.WaitGroup
		began := time.Now()
		all.Go(func() {
			if got := s.read(ctx, "a", began, r.of(t, "a")); !errors.Is(got.err, context.Canceled) {
				t.Errorf("%+v", got)
			}
		})
		synctest.Wait()
		all.Go(func() {
			if got := s.read(t.Context(), "a", began.Add(-time.Second), r.of(t, "a")); got.err != nil {
				t.Errorf("%+v", got)
			}
		})
		synctest.Wait()
		leave()
		all.Wait()
		if got := s.update(ctx, "b", time.Now(), r.of(t, "b")); !errors.Is(got.err, context.Canceled) {
			t.Errorf("%+v", got)
		}
		r.took = time.Hour // no answer
		asked := time.Now()
		if got := s.read(t.Context(), "a", asked, r.of(t, "a")); !errors.Is(got.err, context.DeadlineExceeded) || time.Since(asked) != readTimeout {
			t.Errorf("%+v after %v", got, time.Since(asked))
		}
	})
}

// TestTheTrend has the last points and no old ones, and few readings are kept.
func TestTheTrend(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSampler()
		sample := func(held int) []point {
			return s.read(t.Context(), time.Now().String(), time.Now(), func(context.Context) (any, error) {
				return inspect.Snapshot{Server: inspect.Server{Held: held, Waiting: 2 * held}}, nil
			}).trend
		}
		var p []point
		for i := range 200 {
			p = sample(i)
			time.Sleep(interval) //nolint:forbidigo // the clock is that of the test
		}
		if n := len(p); n != maxTrend || p[n-1].held != 199 || p[n-1].waiting != 398 || p[0].held != 200-maxTrend {
			t.Errorf("%d points: %+v", n, p)
		}
		if len(s.shared) > maxShared {
			t.Errorf("%d readings are kept", len(s.shared))
		}
		time.Sleep(trendAge + time.Second) //nolint:forbidigo // the clock is that of the test
		if p = sample(7); len(p) != 1 {
			t.Errorf("after a pause: %+v", p)
		}
	})
}
