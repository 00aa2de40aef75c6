package leader

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/pglock/pglock-go/internal/errs"
	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/observe"
)

// Election is one candidate in the election of a name, or an observer that never campaigns. It is
// safe for concurrent use, and holds no resources while it neither campaigns nor leads.
type Election struct {
	client *pglock.Client
	name   string
	cfg    config

	campaign chan struct{} // holds one element during a call of Campaign

	mu   sync.Mutex // guards term
	term *Term      // the last one, until it was resigned
}

// New returns a candidate in the election of that name, without contacting the database. All
// candidates and observers use the same name, which is that of the lock, and use it for nothing
// else.
//
// The error wraps pglock.ErrInvalidOption.
func New(client *pglock.Client, name string, opts ...Option) (*Election, error) {
	cfg := config{logger: slog.Default}
	if err := errs.Apply("leader", &cfg, opts); err != nil {
		return nil, err
	}
	if client == nil {
		return nil, errs.InvalidOption("leader", "client is nil: must be from pglock.Open")
	}
	if err := pglock.CheckName(name); err != nil {
		return nil, err
	}
	return &Election{client: client, name: name, cfg: cfg, campaign: make(chan struct{}, 1)}, nil
}

// Campaign waits until this candidate is elected, and returns its term, which lasts until Resign,
// or until its lease is lost. Observers see the payload from the first moment on.
//
// If this Election leads already, Campaign proclaims the payload and returns the term. Calls at the
// same time come one after the other. Two Elections are two candidates, also on one client.
//
// On failure nothing is held, except the term of an Election that leads. The error is one of
// pglock.Client.Acquire: for an invalid payload, see Term.Proclaim, it wraps
// pglock.ErrInvalidOption, and after the end of ctx pglock.ErrNotAcquired and ctx's error and
// cause. If ctx is that of a term of another Election of the same name, it wraps
// pglock.ErrHeldByCaller, also with pglock.WithJoin. ctx bounds the call, not the term.
func (e *Election) Campaign(ctx context.Context, payload string) (*Term, error) {
	return e.campaignWith(ctx, payload)
}

// campaignWith is Campaign with further options of the lease.
func (e *Election) campaignWith(ctx context.Context, payload string, opts ...pglock.LeaseOption) (*Term, error) {
	select { // if both are ready, either is right, because Acquire checks ctx
	case e.campaign <- struct{}{}:
		defer func() { <-e.campaign }()
	case <-ctx.Done():
		return nil, errs.Mark(errs.Errorf("leader: campaign for %q: another call of this candidate campaigns: %w", e.name, errs.ContextErr(ctx)), pglock.ErrNotAcquired)
	}
	if t, leads := e.Term(); leads {
		if err := t.Proclaim(ctx, payload); err != nil {
			return nil, err
		}
		return t, nil
	}
	opts = slices.Concat(e.cfg.lease, []pglock.LeaseOption{pglock.WithLabels(map[string]string{payloadLabel: payload})}, opts)
	e.client.Report(ctx, observe.ResultEvent{Kind: observe.KindTerm, Name: e.name}) // there is a candidate
	lease, err := e.client.Acquire(ctx, e.name, opts...)
	if err != nil {
		return nil, err
	}
	t := newTerm(e, lease)
	go t.announce(context.WithoutCancel(ctx), payload)
	e.mu.Lock()
	defer e.mu.Unlock()
	e.term = t
	return t, nil
}

// Term returns the last term of this candidate, and whether it leads now. If it does not lead, a
// term that is not nil was lost but not resigned yet, so its work may still be running.
func (e *Election) Term() (t *Term, leads bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.term, e.term != nil && e.term.lease.Err() == nil
}

// payloadLabel is the label of the leader's lease that has its payload.
const payloadLabel = "payload"

// Term is the time in which a candidate leads. It is safe for concurrent use.
//
//	leads ──Resign──▶ over: the next candidate is elected
//	  └────lease lost──▶ lost: call Resign when the work has ended, or campaign again
type Term struct {
	election  *Election
	lease     *pglock.Lease
	announced chan struct{} // closed when announce has returned
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
	return &Term{election: e, lease: lease, announced: make(chan struct{})}
}

// announce notifies observers of the term by setting the labels that the grant has. If that fails,
// they poll.
func (t *Term) announce(ctx context.Context, payload string) {
	defer close(t.announced)
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	_ = t.lease.SetLabels(ctx, map[string]string{payloadLabel: payload})
}

// Lease returns the term's lease, for Token, Guard, Bind, Fence, Context and Err.
func (t *Term) Lease() *pglock.Lease { return t.lease }

// Proclaim replaces the payload, which Observe and Leader return. The rules for it, ctx and the
// errors are those of pglock.Lease.SetLabels: UTF-8 without NUL, 16 KiB at most with all labels of
// the lease.
func (t *Term) Proclaim(ctx context.Context, payload string) error {
	<-t.announced // within a second; otherwise the old payload could come after this one
	return t.lease.SetLabels(ctx, map[string]string{payloadLabel: payload})
}

// Resign ends the term: the lease's Context is done, and then the next candidate is elected, so
// stop the work first. Resign may be called again, and its errors and ctx are those of
// pglock.Lease.Release.
func (t *Term) Resign(ctx context.Context) error {
	err := t.lease.Release(ctx)
	t.election.mu.Lock()
	defer t.election.mu.Unlock()
	if t.election.term == t {
		t.election.term = nil
	}
	return err
}
