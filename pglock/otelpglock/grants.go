package otelpglock

import (
	"sync"

	"go.opentelemetry.io/otel/trace"

	"github.com/pglock/pglock-go/pglock"
)

// maxGrants is the number of grants whose spans are remembered.
const maxGrants = 1024

// recentGrants remembers the spans of the last grants, for links. It is safe for concurrent use.
type recentGrants struct {
	mu    sync.Mutex // guards the fields below
	spans map[pglock.Token]trace.SpanContext
	order []pglock.Token // a ring; at is the oldest one if it is full
	at    int
}

// add remembers the span of a grant, and forgets that of the oldest one if there are too many. A
// span that is not sampled leads nowhere.
func (r *recentGrants) add(token pglock.Token, span trace.SpanContext) {
	if !span.IsSampled() {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.spans == nil {
		r.spans = map[pglock.Token]trace.SpanContext{}
	}
	if len(r.order) < maxGrants {
		r.order = append(r.order, token)
	} else {
		delete(r.spans, r.order[r.at])
		r.order[r.at] = token
		r.at = (r.at + 1) % maxGrants
	}
	r.spans[token] = span
}

// find returns the span of a grant, if it is remembered.
func (r *recentGrants) find(token pglock.Token) (trace.SpanContext, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	span, ok := r.spans[token]
	return span, ok
}
