package store

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglock/pglock-go/fencing"
)

// Renewals are grants to renew, sorted by name, with the time that each lasts from now.
type Renewals struct {
	Grants []fencing.Fence
	TTLs   []time.Duration
	Shared bool // all of them are shared; otherwise none is
}

// Renewal is the answer for one grant.
type Renewal struct {
	Outcome   RenewOutcome
	Remaining time.Duration
	Sent      time.Time // just before the statement was sent: Remaining counts from there
}

// RenewOutcome says what a renewal did for one grant.
type RenewOutcome int

// Outcomes of a renewal.
const (
	RenewGone    RenewOutcome = iota // not the current grant any more, or expired
	RenewBlocked                     // its row is locked by another transaction: try again
	RenewDone
)

// Renew renews grants. It uses none of the connections that are kept for renewals. A grant without
// an answer is gone.
func (s *Store) Renew(ctx context.Context, r Renewals) (map[fencing.Fence]Renewal, error) {
	return s.renew(ctx, s.send, r)
}

// RenewReserved is Renew on the connections that are kept for renewals. After patience without an
// answer it calls overdue, perhaps while it returns. ctx is derived from the life of the Store.
func (s *Store) RenewReserved(ctx context.Context, r Renewals, patience time.Duration, overdue func(sent time.Time)) (map[fencing.Fence]Renewal, error) {
	send := func(ctx context.Context, st statement) (time.Time, error) {
		return s.sendRenewal(ctx, st, patience, overdue)
	}
	return s.renew(ctx, send, r)
}

func (s *Store) renew(ctx context.Context, send func(context.Context, statement) (time.Time, error), r Renewals) (map[fencing.Fence]Renewal, error) {
	names, tokens := split(r.Grants)
	us := make([]int64, len(r.TTLs))
	for i, ttl := range r.TTLs {
		us[i] = ttl.Microseconds()
	}
	answers := make(map[fencing.Fence]Renewal, len(names))
	renewSQL, aliveSQL := s.sql.renew, s.sql.checkAlive
	if r.Shared {
		renewSQL, aliveSQL = s.sql.renewPermits, s.sql.checkAlivePermits
	}
	sent, err := send(ctx, statement{renewSQL, []any{names, tokens, us}, func(r pgx.Rows) error {
		var left int64
		fence := fencing.Fence{Schema: s.schema}
		err := r.Scan(&fence.Name, &fence.Token, &left)
		answers[fence] = Renewal{Outcome: RenewDone, Remaining: time.Duration(left) * time.Microsecond}
		return err
	}})
	if err == nil && len(answers) < len(names) { // the others are gone, or blocked
		_, err = send(ctx, statement{aliveSQL, []any{names, tokens}, func(r pgx.Rows) error {
			fence := fencing.Fence{Schema: s.schema}
			err := r.Scan(&fence.Name, &fence.Token)
			if _, ok := answers[fence]; err == nil && !ok {
				answers[fence] = Renewal{Outcome: RenewBlocked}
			}
			return err
		}})
	}
	for fence, answer := range answers {
		answer.Sent = sent
		answers[fence] = answer
	}
	return answers, s.Explain(fmt.Sprintf("renew %d leases", len(names)), err)
}
