package leasetable

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglock/pglock-go/fencing"
)

// Extension is a grant to renew, with the time that it is to last from now.
type Extension struct {
	Fence fencing.Fence
	TTL   time.Duration
}

// Renewal is the answer for one grant.
type Renewal struct {
	Outcome   RenewOutcome
	Remaining time.Duration
	Sent      time.Time // just before the statement was sent: Remaining counts from there
	Status
}

// Status is what the holder of a grant is to know about it, or not, by nil.
type Status struct {
	Request *string // the reason why it is asked to release the lock
	Revoked *string // the reason why the grant was revoked
}

// RenewOutcome says what a renewal did for one grant.
type RenewOutcome int

// Outcomes of a renewal.
const (
	RenewGone    RenewOutcome = iota // not the current grant any more, or expired
	RenewBlocked                     // its row is locked by another transaction: try again
	RenewDone
)

// Renew renews grants, which are sorted by name. It uses none of the connections that are kept for renewals. A grant without
// an answer is gone. It tries twice.
func (s *Store) Renew(ctx context.Context, all []Extension) (answers map[fencing.Fence]Renewal, err error) {
	err = s.twice(ctx, func(ctx context.Context) error {
		answers, err = s.renew(ctx, s.send, all)
		return err
	})
	return answers, err
}

// RenewReserved is Renew on the connections that are kept for renewals. After patience without an
// answer it calls overdue, perhaps while it returns. ctx is derived from the life of the Store.
func (s *Store) RenewReserved(ctx context.Context, all []Extension, patience time.Duration, overdue func(sent time.Time)) (map[fencing.Fence]Renewal, error) {
	send := func(ctx context.Context, st statement) (time.Time, error) {
		return s.sendRenewal(ctx, st, patience, overdue)
	}
	return s.renew(ctx, send, all)
}

func (s *Store) renew(ctx context.Context, send func(context.Context, statement) (time.Time, error), all []Extension) (map[fencing.Fence]Renewal, error) {
	n := len(all)
	names, tokens, us := make([]string, n), make([]int64, n), make([]int64, n)
	for i, x := range all {
		names[i], tokens[i], us[i] = x.Fence.Name, int64(x.Fence.Token), x.TTL.Microseconds()
	}
	answers := make(map[fencing.Fence]Renewal, len(names))
	sent, err := send(ctx, statement{s.sql.renew, []any{names, tokens, us}, func(r pgx.Rows) error {
		var left int64
		answer := Renewal{Outcome: RenewDone}
		fence := fencing.Fence{Schema: s.schema}
		err := r.Scan(&fence.Name, &fence.Token, &left, &answer.Request)
		answer.Remaining = time.Duration(left) * time.Microsecond
		answers[fence] = answer
		return err
	}})
	if err == nil && len(answers) < len(names) { // the others are gone, or blocked
		_, err = s.checkGrants(ctx, send, names, tokens, func(fence fencing.Fence, live bool, status Status) {
			answer := Renewal{Status: status}
			if live {
				answer.Outcome = RenewBlocked
			}
			if _, ok := answers[fence]; !ok {
				answers[fence] = answer
			}
		})
	}
	for fence, answer := range answers {
		answer.Sent = sent
		answers[fence] = answer
	}
	return answers, s.Explain(fmt.Sprintf("renew %d leases", len(names)), err)
}

// checkGrants calls found for each of the grants that is live or revoked.
func (s *Store) checkGrants(
	ctx context.Context, send func(context.Context, statement) (time.Time, error),
	names []string, tokens []int64, found func(fence fencing.Fence, live bool, status Status),
) (time.Time, error) {
	return send(ctx, statement{s.sql.checkGrants, []any{names, tokens}, func(r pgx.Rows) error {
		var live bool
		var status Status
		fence := fencing.Fence{Schema: s.schema}
		if err := r.Scan(&fence.Name, &fence.Token, &live, &status.Request, &status.Revoked); err != nil {
			return err
		}
		found(fence, live, status)
		return nil
	}})
}

// CheckGrants returns what the holders of grants are to know, for each grant that is live or
// revoked. ctx is derived from the life of the Store.
func (s *Store) CheckGrants(ctx context.Context, grants []fencing.Fence) (map[fencing.Fence]Status, error) {
	names, tokens := split(grants)
	all := make(map[fencing.Fence]Status, len(names))
	_, err := s.checkGrants(ctx, s.sendWithin, names, tokens, func(fence fencing.Fence, _ bool, status Status) { all[fence] = status })
	return all, err
}
