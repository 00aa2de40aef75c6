package leasetable

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglock/pglock-go/fencing"
	"github.com/pglock/pglock-go/internal/pgtx"
)

// Extension is a grant to renew, with the time that it is to last from now.
type Extension struct {
	Fence fencing.Fence
	TTL   time.Duration
}

// Renewal is the answer for one grant.
type Renewal struct {
	Outcome   Outcome // Granted; Busy: its row is locked, so try again; empty: the grant is gone
	Remaining time.Duration
	Sent      time.Time // just before the statement was sent: Remaining counts from there
	Request   *string   // the reason why its holder is asked to release the lock, or nil
	Revoked   *string   // the reason why it was revoked, or nil

	// Of Adopt:
	Age     time.Duration // since the grant
	ID      string        // of the request that was granted
	Permits Permits
}

// sender sends a statement, and returns the time just before.
type sender func(context.Context, statement) (time.Time, error)

// Renew renews grants, which are sorted by name. A grant without an answer is gone.
func (s *Store) Renew(ctx context.Context, all []Extension) (answers map[fencing.Fence]Renewal, err error) {
	err = s.twice(ctx, func(ctx context.Context) error {
		answers, err = s.renew(ctx, s.send, all, nil)
		return err
	})
	return answers, err
}

// RenewReserved is Renew on the connections that are kept for renewals. After patience without an
// answer it calls overdue, perhaps while it returns.
func (s *Store) RenewReserved(ctx context.Context, all []Extension, patience time.Duration, overdue func(sent time.Time)) (map[fencing.Fence]Renewal, error) {
	send := func(ctx context.Context, st statement) (time.Time, error) {
		return s.roundTrip(ctx, st, true, func(sent time.Time) (stop func() bool) {
			return time.AfterFunc(patience, func() { overdue(sent) }).Stop
		})
	}
	return s.renew(ctx, send, all, nil)
}

// Adopt renews one grant and makes holder its holder.
func (s *Store) Adopt(ctx context.Context, fence fencing.Fence, holder string, ttl time.Duration) (Renewal, error) {
	answers, err := s.renew(ctx, s.send, []Extension{{fence, ttl}}, &holder)
	return answers[fence], err
}

// renew renews grants. With a holder it adopts them.
func (s *Store) renew(ctx context.Context, send sender, all []Extension, holder *string) (map[fencing.Fence]Renewal, error) {
	n := len(all)
	names, tokens, us := make([]string, n), make([]int64, n), make([]int64, n)
	for i, x := range all {
		names[i], tokens[i], us[i] = x.Fence.Name, int64(x.Fence.Token), x.TTL.Microseconds()
	}
	answers := make(map[fencing.Fence]Renewal, n)
	sent, err := send(ctx, statement{s.sql["renew"], []any{names, tokens, us, holder}, func(r pgx.Rows) error {
		var weight *int
		adopted := []any{nil, nil, nil, nil}
		answer := Renewal{Outcome: Granted}
		if holder != nil {
			adopted = []any{(*pgtx.Micros)(&answer.Age), &answer.ID, &weight, &answer.Permits.Capacity}
		}
		fence := fencing.Fence{Schema: s.schema}
		err := r.Scan(append([]any{&fence.Name, &fence.Token, (*pgtx.Micros)(&answer.Remaining), &answer.Request}, adopted...)...)
		if weight != nil {
			answer.Permits.Weight = *weight
		}
		answers[fence] = answer
		return err
	}})
	if err == nil && len(answers) < n { // the others are gone, or blocked
		err = s.checkGrants(ctx, send, names, tokens, answers)
	}
	for fence, answer := range answers {
		answer.Sent = sent
		answers[fence] = answer
	}
	return answers, s.Explain(fmt.Sprintf("renew %d leases", n), err)
}

// checkGrants adds an answer for each of the other grants that is live, and therefore Busy, or revoked.
func (s *Store) checkGrants(ctx context.Context, send sender, names []string, tokens []int64, answers map[fencing.Fence]Renewal) error {
	_, err := send(ctx, statement{s.sql["check_grants"], []any{names, tokens}, func(r pgx.Rows) error {
		var live bool
		var answer Renewal
		fence := fencing.Fence{Schema: s.schema}
		if err := r.Scan(&fence.Name, &fence.Token, &live, &answer.Request, &answer.Revoked); err != nil {
			return err
		}
		if live {
			answer.Outcome = Busy
		}
		if _, ok := answers[fence]; !ok {
			answers[fence] = answer
		}
		return nil
	}})
	return err
}

// CheckGrants returns what the holders of grants are to know, for each grant that is live or
// revoked.
func (s *Store) CheckGrants(ctx context.Context, grants []fencing.Fence) (map[fencing.Fence]Renewal, error) {
	names, tokens := split(grants)
	all := make(map[fencing.Fence]Renewal, len(names))
	return all, s.checkGrants(ctx, s.sendWithin, names, tokens, all)
}
