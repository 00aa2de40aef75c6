package leader

import (
	"context"
	"errors"
	"slices"
	"sync"

	"github.com/pglock/pglock-go/internal/errs"
	"github.com/pglock/pglock-go/leasetable"
	"github.com/pglock/pglock-go/pglock"
)

// Election is one candidate in the election of a name. It is safe for concurrent use. It holds no
// resources while it neither campaigns nor leads. Observers use one that never campaigns.
type Election struct {
	client *pglock.Client
	name   string
	cfg    config

	campaign chan struct{} // holds one element during a call of Campaign

	mu   sync.Mutex // guards term
	term *Term      // the last one, until it was resigned or transferred
}

// New returns a candidate in the election of that name, without contacting the database. All
// candidates and observers use the same name, and use it for nothing else. The name is that of the
// lock: 1 to 512 bytes of UTF-8 without NUL.
//
// The error wraps ErrInvalidOption, ErrPayload or pglock.ErrInvalidName. Campaign checks the options
// of WithLease.
func New(client *pglock.Client, name string, opts ...Option) (*Election, error) {
	cfg := newConfig()
	for _, o := range opts {
		if err := o(&cfg); err != nil {
			return nil, err
		}
	}
	if client == nil {
		return nil, invalidOption("client is nil: must be from pglock.Open")
	}
	if err := leasetable.CheckName(name); err != nil {
		return nil, err
	}
	return &Election{client: client, name: name, cfg: cfg, campaign: make(chan struct{}, 1)}, nil
}

// Name returns the election's name.
func (e *Election) Name() string { return e.name }

// Campaign waits until this candidate is elected, and returns its term. Observers see the payload from
// the first moment on. The term lasts until Resign or Transfer, or until its lease is lost.
//
// If this Election leads already, Campaign proclaims the payload and returns the term. Calls at the
// same time come one after the other. Two Elections are two candidates, also on one client.
//
// On failure nothing is held, except the term of an Election that leads. The error wraps ErrPayload, or
// is one of pglock.Client.Acquire: after the end of ctx it wraps pglock.ErrNotAcquired and ctx's error
// and cause. If ctx is that of a term of another Election of the same name, it wraps
// pglock.ErrHeldByCaller, also with pglock.WithJoin: a joined lease would be a second leader with the
// same token. ctx bounds the call, not the term.
func (e *Election) Campaign(ctx context.Context, payload string) (*Term, error) {
	return e.campaignWith(ctx, payload)
}

// campaignWith is Campaign with further options of the lease.
func (e *Election) campaignWith(ctx context.Context, payload string, opts ...pglock.LeaseOption) (*Term, error) {
	if err := checkPayload(payload); err != nil {
		return nil, errs.Errorf("leader: campaign for %q: %w", e.name, err)
	}
	select { // if both are ready, either is right: Acquire looks at ctx
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
	opts = slices.Concat(e.cfg.lease, []pglock.LeaseOption{pglock.WithLabel(PayloadLabel, payload), pglock.WithAnnounce()}, opts)
	lease, err := e.client.Acquire(ctx, e.name, opts...)
	if err != nil {
		return nil, err
	}
	outer, carried := pglock.FromContext(ctx, e.name)
	switch {
	case carried && outer.Fence() == lease.Fence():
		return nil, errs.Join(errs.Mark(errs.Errorf("leader: campaign for %q: the context is that of its leader, and elections do not join: use another context",
			e.name), pglock.ErrHeldByCaller), lease.Release(ctx))
	case lease.Unlocked():
		return nil, errs.Join(invalidOption("campaign for %q: WithFailOpen: a leader needs the lock", e.name), lease.Release(ctx))
	}
	return e.begin(lease), nil
}

// Term returns the term of this candidate, and whether it leads now.
func (e *Election) Term() (t *Term, leads bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.term, e.term != nil && e.term.lease.Err() == nil
}

// over forgets a term whose work has ended.
func (e *Election) over(t *Term) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.term == t {
		e.term = nil
	}
}

// Candidates returns the candidates that wait to be elected, in the order of the queue, without the
// leader: of each client, the first one. An election that nobody ever won has none. ctx bounds the call.
func (e *Election) Candidates(ctx context.Context) ([]pglock.WaiterInfo, error) {
	k, err := e.client.Get(ctx, e.name)
	if errors.Is(err, pglock.ErrNotFound) {
		return nil, nil
	}
	return k.Waiters, err
}

// Resume returns the term of another process, which has handed over its lease (pglock.Lease.HandOver),
// for instance before it restarts. Token and payload stay, and nobody else is elected in between. It
// must come before the lease expires. If the term is over, the error wraps pglock.ErrStale. The other
// errors are those of pglock.Client.Adopt. ctx bounds the call.
func (e *Election) Resume(ctx context.Context, f pglock.Fence) (*Term, error) {
	if f.Name != e.name {
		return nil, invalidOption("resume %q: the fence is of %q: must be of the same election", e.name, f.Name)
	}
	lease, err := e.client.Adopt(ctx, f, e.cfg.lease...)
	if err != nil {
		return nil, err
	}
	return e.begin(lease), nil
}

// begin makes the lease the term of this candidate.
func (e *Election) begin(lease *pglock.Lease) *Term {
	t := newTerm(e, lease)
	e.mu.Lock()
	defer e.mu.Unlock()
	e.term = t
	return t
}
