package ui

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/pglock/pglock-go/internal/errs"
	"github.com/pglock/pglock-go/pglock/inspect"
)

const (
	interval    = 2 * time.Second // between two updates of a page
	rest        = 100             // an update that took t is followed by none for rest × t: 1 % of the time
	readTimeout = 5 * time.Second
	maxShared   = 32 // readings that are kept
	maxTrend    = 60 // points of a sparkline, none of which is older than trendAge
	trendAge    = 10 * time.Minute
)

// reading is what a page shows.
type reading struct {
	began time.Time
	took  time.Duration
	value any
	err   error
}

// point is a point of the sparklines.
type point struct {
	at            time.Time
	held, waiting int
}

// sampler reads the database for all viewers, one read at a time, and viewers of one page share a
// reading. Pages that are opened are read at once. Updates of all open pages together take at most a
// hundredth of the time, and no page is updated more often than once per interval.
type sampler struct {
	turn chan struct{} // buffer of one: the sender reads
	pace chan struct{} // buffer of one: the sender reads the next update, and may use next
	next time.Time     // when the next update may be read

	mu     sync.Mutex // guards the fields below
	shared map[string]reading
	trend  []point
}

func newSampler() *sampler {
	return &sampler{turn: make(chan struct{}, 1), pace: make(chan struct{}, 1), shared: map[string]reading{}}
}

// read returns a reading of key that began after a time. The caller makes it, unless another one has
// while the caller waited for its turn.
func (s *sampler) read(ctx context.Context, key string, after time.Time, load func(context.Context) (any, error)) reading {
	select { // if both are ready, the caller has left, and then load fails
	case s.turn <- struct{}{}:
		defer func() { <-s.turn }()
	case <-ctx.Done():
		return reading{err: errs.ContextErr(ctx)}
	}
	if r, ok := s.newer(key, after); ok {
		return r
	}
	bounded, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	r := reading{began: time.Now()}
	r.value, r.err = load(bounded)
	r.took = time.Since(r.began)
	if ctx.Err() == nil { // otherwise the error is that of a viewer who has left
		s.share(key, r)
	}
	return r
}

// update returns a reading of key that began after the one at seen, for a page that is open.
func (s *sampler) update(ctx context.Context, key string, seen time.Time, load func(context.Context) (any, error)) reading {
	select { // senders are served in their order, so each open page gets its share of the updates
	case s.pace <- struct{}{}:
		defer func() { <-s.pace }()
	case <-ctx.Done():
		return reading{err: errs.ContextErr(ctx)}
	}
	if r, ok := s.newer(key, seen); ok {
		return r
	}
	select { // if both are ready, the viewer has left, and then read fails
	case <-time.After(time.Until(s.next)):
	case <-ctx.Done():
	}
	r := s.read(ctx, key, seen, load)
	s.next = time.Now().Add(rest * r.took)
	return r
}

func (s *sampler) newer(key string, after time.Time) (reading, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r, ok := s.shared[key]
	return r, ok && r.began.After(after)
}

func (s *sampler) share(key string, r reading) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.shared) >= maxShared {
		clear(s.shared)
	}
	s.shared[key] = r
	if snapshot, ok := r.value.(inspect.Snapshot); ok && r.err == nil {
		s.trend = slices.DeleteFunc(s.trend, func(p point) bool { return r.began.Sub(p.at) > trendAge })
		s.trend = append(s.trend, point{r.began, snapshot.Server.Held, snapshot.Server.Waiting})
		s.trend = s.trend[max(0, len(s.trend)-maxTrend):]
	}
}

// points returns the points of the sparklines.
func (s *sampler) points() []point {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.trend)
}
