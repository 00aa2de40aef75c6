package leader

import (
	"context"
	"errors"
	"time"

	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/observe"
)

// payloadLabel is the label of the leader's lease that has its payload.
const payloadLabel = "payload"

// Term is the time in which a candidate leads. It is safe for concurrent use.
//
//	leads ──Resign──▶ over: the next candidate is elected
//	  └────lease lost──▶ lost: call Resign when the work has ended, or campaign again
type Term struct {
	election *Election
	lease    *pglock.Lease
}

// newTerm returns the term of a lease, and reports its begin and its end.
func newTerm(e *Election, lease *pglock.Lease) *Term {
	began := time.Now()
	ev := observe.ResultEvent{Kind: observe.KindTerm, Name: e.name, Token: lease.Token(), Outcome: observe.OutcomeBegan}
	e.client.Report(lease.Context(), ev)
	context.AfterFunc(lease.Context(), func() {
		ev.Outcome, ev.Duration = observe.OutcomeEnded, time.Since(began)
		if err := lease.Err(); errors.Is(err, pglock.ErrLost) {
			ev.Outcome, ev.Err = observe.OutcomeLost, err
		}
		e.client.Report(lease.Context(), ev)
	})
	return &Term{election: e, lease: lease}
}

// Lease returns the term's lease, for Token, Guard, Bind, Fence, Context and Err.
func (t *Term) Lease() *pglock.Lease { return t.lease }

// Proclaim replaces the payload, which Observe and Leader return. The rules for it, ctx and the errors are
// those of pglock.Lease.SetLabels: UTF-8 without NUL, 16 KiB at most with all labels of the lease.
func (t *Term) Proclaim(ctx context.Context, payload string) error {
	return t.lease.SetLabels(ctx, map[string]string{payloadLabel: payload})
}

// Resign ends the term: the lease's Context is done, and then the next candidate is elected. Stop the
// work first. Resign may be called again. Its errors and ctx are those of pglock.Lease.Release.
func (t *Term) Resign(ctx context.Context) error {
	err := t.lease.Release(ctx)
	t.election.mu.Lock()
	defer t.election.mu.Unlock()
	if t.election.term == t {
		t.election.term = nil
	}
	return err
}
