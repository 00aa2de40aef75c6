package locktest

import (
	"context"
	"slices"
	"strings"
	"sync"

	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/observe"
)

// Results records the results that a client with the option Observer reports.
type Results struct {
	mu  sync.Mutex
	all []observe.ResultEvent
}

// Observer returns the option of a client.
func (r *Results) Observer() pglock.Option {
	return pglock.WithObserver(observe.Hooks{Result: func(_ context.Context, e observe.ResultEvent) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.all = append(r.all, e)
	}})
}

// Of returns the results of a kind so far, and their outcomes in words.
func (r *Results) Of(kind observe.Kind) (all []observe.ResultEvent, outcomes string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	all = slices.DeleteFunc(slices.Clone(r.all), func(e observe.ResultEvent) bool { return e.Kind != kind || e.Outcome == "" })
	words := make([]string, len(all))
	for i, e := range all {
		words[i] = string(e.Outcome)
	}
	return all, strings.Join(words, " ")
}

// Announced returns the last announcement of a kind, and whether there is one.
func (r *Results) Announced(kind observe.Kind) (last observe.ResultEvent, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, e := range slices.Backward(r.all) {
		if e.Kind == kind && e.Outcome == "" {
			return e, true
		}
	}
	return last, false
}
