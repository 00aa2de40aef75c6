package leasetable

import (
	"context"
	"maps"
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
	Sent      time.Time     // just before the statement was sent: Remaining counts from there
	Request   *string       // the reason why its holder is asked to release the lock, or nil
	Revoked   *string       // the reason why it was revoked, or nil
	Age       time.Duration // of Adopt: since the grant
	ID        string        // of Adopt: of the request that was granted
	Permits   Permits       // of Adopt
}

// Renew renews grants, sorted by name. A grant without an answer is gone.
func (t *Table) Renew(ctx context.Context, all []Extension) (map[fencing.Fence]Renewal, error) {
	return t.renew(ctx, all, nil, Statement{Tries: 2})
}

// RenewReserved is Renew once, on a connection that is kept for renewals. After patience without an
// answer it calls overdue, perhaps while it returns.
func (t *Table) RenewReserved(ctx context.Context, all []Extension, patience time.Duration, overdue func(sent time.Time)) (map[fencing.Fence]Renewal, error) {
	return t.renew(ctx, all, nil, Statement{Reserved: true, Watch: func(sent time.Time) (stop func() bool) {
		return time.AfterFunc(patience, func() { overdue(sent) }).Stop
	}})
}

// Adopt renews one grant and makes holder its holder.
func (t *Table) Adopt(ctx context.Context, fence fencing.Fence, holder string, ttl time.Duration) (Renewal, error) {
	answers, err := t.renew(ctx, []Extension{{fence, ttl}}, &holder, Statement{})
	return answers[fence], err
}

// renew renews grants. With a holder it adopts them. Its statements are sent as st says.
func (t *Table) renew(ctx context.Context, all []Extension, holder *string, st Statement) (map[fencing.Fence]Renewal, error) {
	n := len(all)
	names, tokens, us := make([]string, n), make([]int64, n), make([]int64, n)
	for i, x := range all {
		names[i], tokens[i], us[i] = x.Fence.Name, int64(x.Fence.Token), x.TTL.Microseconds()
	}
	answers := make(map[fencing.Fence]Renewal, n)
	renew := st
	renew.SQL, renew.Args = t.sql["renew"], []any{names, tokens, us, holder}
	renew.Begin = func() { clear(answers) }
	renew.Row = func(r pgx.Rows) error {
		var weight *int
		adopted := []any{nil, nil, nil, nil}
		answer := Renewal{Outcome: Granted}
		if holder != nil {
			adopted = []any{(*pgtx.Micros)(&answer.Age), &answer.ID, &weight, &answer.Permits.Capacity}
		}
		fence := fencing.Fence{Schema: t.schema}
		err := r.Scan(append([]any{&fence.Name, &fence.Token, (*pgtx.Micros)(&answer.Remaining), &answer.Request}, adopted...)...)
		if weight != nil {
			answer.Permits.Weight = *weight
		}
		answers[fence] = answer
		return err
	}
	sent, err := t.sender.Send(ctx, renew)
	if err == nil && len(answers) < n { // the others are gone, or blocked
		var others map[fencing.Fence]Renewal
		others, err = t.checkGrants(ctx, names, tokens, st)
		maps.Copy(others, answers)
		answers = others
	}
	for fence, answer := range answers {
		answer.Sent = sent
		answers[fence] = answer
	}
	return answers, err
}

// CheckGrants returns what the holders should know. Each live grant is Busy.
func (t *Table) CheckGrants(ctx context.Context, grants []fencing.Fence) (map[fencing.Fence]Renewal, error) {
	names, tokens := split(grants)
	return t.checkGrants(ctx, names, tokens, Statement{})
}

func (t *Table) checkGrants(ctx context.Context, names []string, tokens []int64, st Statement) (map[fencing.Fence]Renewal, error) {
	answers := make(map[fencing.Fence]Renewal, len(names))
	st.SQL, st.Args = t.sql["check_grants"], []any{names, tokens}
	st.Begin = func() { clear(answers) }
	st.Row = func(r pgx.Rows) error {
		var live bool
		var answer Renewal
		fence := fencing.Fence{Schema: t.schema}
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
	}
	err := t.run(ctx, st)
	return answers, err
}
