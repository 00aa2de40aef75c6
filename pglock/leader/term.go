package leader

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
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
//	  └────lease lost──▶ lost: call Resign when the work has ended, or campaign again
type Term struct {
	election *Election
	lease    *pglock.Lease
}

// Lease returns the term's lease, for Token, Guard, Bind, Fence, Context and Err.
func (t *Term) Lease() *pglock.Lease { return t.lease }

// Proclaim replaces the payload, which Observe and Leader return. It is UTF-8 without NUL.
//
// The error wraps ErrPayload if the payload is too long or invalid; pglock.ErrLost, pglock.ErrReleased or
// pglock.ErrStale if the term has ended; and pglock.ErrUnavailable if the server does not answer, when
// the payload may have been replaced. ctx bounds the call.
func (t *Term) Proclaim(ctx context.Context, payload string) error {
	if err := checkPayload(payload); err != nil {
		return errs.Errorf("leader: proclaim in %q: %w", t.election.name, err)
	}
	return t.lease.SetLabels(ctx, map[string]string{PayloadLabel: payload})
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
