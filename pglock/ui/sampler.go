package ui

import (
	"context"
	"slices"
	"time"

	"github.com/pglock/pglock-go/fencing"
	"github.com/pglock/pglock-go/internal/errs"
	"github.com/pglock/pglock-go/pglock/internal/display"
)

const (
	interval    = 2 * time.Second  // between two updates of a page
	readTimeout = 30 * time.Second // a page of a slow server is better than none, and each statement has its own bound
	maxShared   = 32               // readings that are kept
	maxTrend    = 60               // points of a sparkline, none of which is older than trendAge
	trendAge    = 10 * time.Minute
)

type reading struct {
	began time.Time
	rest  time.Duration // until the next update
	pace  display.Pace  // of the reads of this page
	err   error

	asOf    time.Time // the value is that of the last read that succeeded
	value   any
	overdue map[fencing.Token]time.Duration // since when those of its grants seem unrenewed that should have been
	grown   map[string]int                  // of the first page: by how much its queues are longer than they were
	trend   []point                         // until then
}

type point struct {
	at            time.Time
	held, waiting int
}

// sampler reads the database for all viewers, as Load of the package's documentation says. Pages
// that are opened are read at once, and none is updated more often than once per interval.
type sampler struct {
	restless bool          // updates follow one another without a rest
	bound    time.Duration // of a read

	pace chan struct{} // buffer of one: full while no update may be read
	turn chan struct{} // buffer of one: the sender reads, and may use the fields below

	shared   map[string]reading
	trend    []point
	renewals display.Renewals
	queues   display.Queues // of the first page
}

func newSampler() *sampler {
	return &sampler{
		bound: readTimeout, turn: make(chan struct{}, 1), pace: make(chan struct{}, 1), shared: map[string]reading{}, renewals: display.Renewals{},
	}
}

// read returns a reading of key that began after a time. The caller makes it, unless another one
// has while the caller waited for its turn.
func (s *sampler) read(ctx context.Context, key string, after time.Time, load func(context.Context) (any, error)) reading {
	select { // if both are ready, the caller has left, and then load fails
	case s.turn <- struct{}{}:
		defer func() { <-s.turn }()
	case <-ctx.Done():
		return reading{err: errs.ContextErr(ctx)}
	}
	r := s.shared[key]
	if r.began.After(after) {
		return r
	}
	bounded, cancel := context.WithTimeout(ctx, s.bound)
	defer cancel()
	r.began = time.Now()
	value, err := load(bounded)
	r.rest, r.err = r.pace.Rest(time.Since(r.began), err), err
	if ctx.Err() != nil { // the error is that of a viewer who has left
		return r
	}
	if err == nil {
		s.keep(&r, value)
	}
	if len(s.shared) >= maxShared {
		clear(s.shared)
	}
	s.shared[key] = r
	return r
}

func (s *sampler) keep(r *reading, value any) {
	r.value, r.asOf = value, r.began
	if now, ok := value.(nowPage); ok {
		r.grown = s.queues.Grown(now.Locks)
	}
	if v, ok := snapshotOf(value); ok {
		r.overdue = s.renewals.Overdue(r.began, v.Locks...)
		recent := slices.DeleteFunc(slices.Clone(s.trend), func(p point) bool { return r.began.Sub(p.at) > trendAge })
		s.trend = append(recent[max(0, len(recent)-maxTrend+1):], point{r.began, v.Server.Held, v.Server.Waiting})
	}
	r.trend = s.trend
}

// update returns a reading of key that began after the one at seen, for a page that is open.
func (s *sampler) update(ctx context.Context, key string, seen time.Time, load func(context.Context) (any, error)) reading {
	select { // senders are served in their order, so each open page gets its share of the updates
	case s.pace <- struct{}{}:
	case <-ctx.Done():
		return reading{err: errs.ContextErr(ctx)}
	}
	began, pause := time.Now(), time.Duration(0)
	r := s.read(ctx, key, seen, load)
	if !r.began.Before(began) && !s.restless { // an older one costs nothing
		pause = r.rest
	}
	time.AfterFunc(pause, func() { <-s.pace })
	return r
}
