package leader

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/pglock/pglock-go/internal/errs"
	"github.com/pglock/pglock-go/pglock"
)

// PayloadLabel is the label of the leader's lease that has its payload.
const PayloadLabel = "payload"

// MaxPayload is the longest payload in bytes, as a JSON string.
const MaxPayload = 8 << 10

// Term is the time in which a candidate leads. It is safe for concurrent use.
//
//	leads ──Resign──▶ over: the next candidate is elected
//	  ├────Transfer──▶ over: the named candidate leads
//	  └────lease lost──▶ lost: call Resign when the work has ended, or campaign again
type Term struct {
	election *Election
	lease    *pglock.Lease
	endedAt  atomic.Pointer[time.Time] // when the lease was found to have ended
}

func newTerm(e *Election, lease *pglock.Lease) *Term {
	t := &Term{election: e, lease: lease}
	context.AfterFunc(lease.Context(), func() {
		now := time.Now()
		t.endedAt.Store(&now)
	})
	return t
}

// Lease returns the term's lease, for Token, Guard, Bind, Fence, Context and Err.
func (t *Term) Lease() *pglock.Lease { return t.lease }

// Proclaim replaces the payload, which Observe and Leader return. It is UTF-8 without NUL.
//
// If the payload is too long or invalid, the error wraps ErrPayload. If the term is over, the error
// wraps pglock.ErrLost, pglock.ErrReleased or pglock.ErrStale. If the server does not answer, it wraps
// pglock.ErrUnavailable, and the payload may have been replaced. ctx bounds the call.
func (t *Term) Proclaim(ctx context.Context, payload string) error {
	if err := checkPayload(payload); err != nil {
		return errs.Errorf("leader: proclaim in %q: %w", t.election.name, err)
	}
	return t.lease.SetLabels(ctx, map[string]string{PayloadLabel: payload})
}

// Resign ends the term: the lease's Context is done, and then the next candidate is elected. Stop the
// work first. Resign may be called again. If the lease was lost before, the error wraps pglock.ErrLost.
// Its errors and ctx are those of pglock.Lease.Release.
func (t *Term) Resign(ctx context.Context) error {
	err := t.lease.Release(ctx)
	t.election.over(t)
	return err
}

// Transfer ends the term, and the candidate with that name (pglock.WithHolder) is elected, even if
// others have waited longer. With an empty name, the first candidate is elected. Stop the work first.
// Transfer waits until the candidate leads.
//
// If there is no such candidate, the error wraps ErrNoCandidate, and the term goes on. If the candidate
// leaves or does not respond within 1.5 s, it wraps ErrNoCandidate too, and the term is over: see
// Lease().Err. Its other errors are those of pglock.Lease.Transfer.
func (t *Term) Transfer(ctx context.Context, candidate string) error {
	err := t.lease.Transfer(ctx, candidate)
	if t.lease.Err() != nil {
		t.election.over(t)
	}
	return err
}

// checkPayload returns an error that wraps ErrPayload unless the payload can be stored.
func checkPayload(payload string) error {
	if !utf8.ValidString(payload) || strings.ContainsRune(payload, 0) {
		return fmt.Errorf("%w: must be UTF-8 without NUL", ErrPayload)
	}
	text, err := json.Marshal(payload)
	switch {
	case err != nil:
		return fmt.Errorf("%w: %w", ErrPayload, err)
	case len(text) > MaxPayload:
		return fmt.Errorf("%w: %d bytes as JSON: must be at most %d", ErrPayload, len(text), MaxPayload)
	}
	return nil
}
