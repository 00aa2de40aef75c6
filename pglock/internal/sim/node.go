package sim

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglock/pglock-go/advisory"
	"github.com/pglock/pglock-go/fencing"
	"github.com/pglock/pglock-go/internal/backoff"
	"github.com/pglock/pglock-go/internal/errs"
	"github.com/pglock/pglock-go/internal/timing"
	"github.com/pglock/pglock-go/leasetable"
	"github.com/pglock/pglock-go/pglock/internal/backend"
	"github.com/pglock/pglock-go/pglock/internal/link"
	"github.com/pglock/pglock-go/pglock/internal/memory"
	"github.com/pglock/pglock-go/pglock/internal/records"
)

// store is what the client of a process has for its tables: each statement is a message to the
// server, and the answer another one. What it does not override needs no message.
type store struct {
	*memory.Store // at the server: it outlives the process, as messages do that are on their way
	node          *Node
	life          context.Context //nolint:containedctx // of the client: ends every statement
}

// repeated is how often leasetable lets a statement be sent that is safe to repeat, and harmless.
const repeated = 2

// send sends a statement as link.Link.Send does, and returns the answer to the attempt that was
// answered, with the time at which that was sent.
func send[T any](ctx context.Context, s *store, op, about string, tries int, apply func(ctx context.Context) (T, error)) (answer T, sent time.Time, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(s.life, func() { cancel(errs.ErrClosed) })()
	attempt := func(ctx context.Context) (err error) {
		sent = time.Now()
		answer, err = carry(ctx, s.node, op, about, apply)
		return err
	}
	if tries < repeated {
		err = attempt(ctx)
	} else {
		ctx, end := context.WithTimeout(ctx, timing.StatementBound)
		defer end()
		err = backoff.Retry(ctx, backoff.Policy{Transient: link.Transient, Tries: tries}, attempt)
	}
	if err != nil && s.life.Err() != nil {
		err = errs.Errorf("%w: %w", errs.ErrClosed, err)
	}
	return answer, sent, err
}

// do is send for a statement without an answer.
func (s *store) do(ctx context.Context, op, about string, tries int, apply func(ctx context.Context) error) error {
	_, _, err := send(ctx, s, op, about, tries, func(ctx context.Context) (struct{}, error) { return struct{}{}, apply(ctx) })
	return err
}

// stamp sets the time at which an answer was asked for.
func stamp[K comparable](all map[K]leasetable.Renewal, sent time.Time) map[K]leasetable.Renewal {
	for k, r := range all {
		r.Sent = sent
		all[k] = r
	}
	return all
}

// copied returns a request as it is on its way, because the caller uses it for further attempts.
func copied(r *leasetable.Request) *leasetable.Request {
	c := *r
	return &c
}

func copiedAll(batch []*leasetable.Request) (all []*leasetable.Request) {
	for _, r := range batch {
		all = append(all, copied(r))
	}
	return all
}

// namesOf says what a batch is about.
func namesOf(batch []*leasetable.Request) string {
	names := make([]string, len(batch))
	for i, r := range batch {
		names[i] = r.Name
	}
	return strings.Join(names, ", ")
}

func (s *store) acquire(ctx context.Context, op string, batch []*leasetable.Request, apply func(context.Context, []*leasetable.Request) ([]leasetable.Grant, error)) ([]leasetable.Grant, error) {
	sentBatch := copiedAll(batch)
	all, sent, err := send(ctx, s, op, namesOf(batch), 1, func(ctx context.Context) ([]leasetable.Grant, error) {
		for _, r := range sentBatch {
			s.node.world.judge.asks(r, "")
		}
		all, err := apply(ctx, sentBatch)
		s.node.world.judge.unchanged = !slices.ContainsFunc(all, func(g leasetable.Grant) bool { return g.Outcome == leasetable.Granted })
		return all, err
	})
	if err != nil {
		return make([]leasetable.Grant, len(batch)), err
	}
	for i := range all {
		all[i].Sent = sent
	}
	return all, nil
}

func (s *store) AcquireFast(ctx context.Context, batch []*leasetable.Request) ([]leasetable.Grant, error) {
	return s.acquire(ctx, "acquire_fast", batch, s.Store.AcquireFast)
}

func (s *store) AcquireFull(ctx context.Context, batch []*leasetable.Request) ([]leasetable.Grant, error) {
	return s.acquire(ctx, "acquire_full", batch, s.Store.AcquireFull)
}

// grant is for a statement that answers one request.
func (s *store) grant(ctx context.Context, op string, r *leasetable.Request, apply func(context.Context, *leasetable.Request) (leasetable.Grant, error)) (leasetable.Grant, error) {
	r = copied(r)
	g, sent, err := send(ctx, s, op, r.Name, 1, func(ctx context.Context) (leasetable.Grant, error) { return apply(ctx, r) })
	g.Sent = sent
	return g, err
}

func (s *store) AcquireSlots(ctx context.Context, r *leasetable.Request) (leasetable.Grant, error) {
	return s.grant(ctx, "acquire_slots", r, func(ctx context.Context, r *leasetable.Request) (leasetable.Grant, error) {
		s.node.world.judge.asks(r, "")
		return s.Store.AcquireSlots(ctx, r)
	})
}

func (s *store) HandOff(ctx context.Context, fence fencing.Fence, r *leasetable.Request, client string) (leasetable.Grant, error) {
	return s.grant(ctx, "handoff", r, func(ctx context.Context, r *leasetable.Request) (leasetable.Grant, error) {
		s.node.world.judge.asks(r, client)
		s.node.world.judge.clients[client] = s.node
		return s.Store.HandOff(ctx, fence, r, client)
	})
}

func (s *store) Upgrade(ctx context.Context, reader fencing.Token, r *leasetable.Request) (leasetable.Grant, error) {
	return s.grant(ctx, "upgrade", r, func(ctx context.Context, r *leasetable.Request) (leasetable.Grant, error) {
		g, err := s.Store.Upgrade(ctx, reader, r)
		if g.Outcome == leasetable.Granted {
			s.node.world.judge.upgraded[reader] = g.Token
		}
		return g, err
	})
}

func (s *store) Adopt(ctx context.Context, fence fencing.Fence, holder string, ttl time.Duration) (leasetable.Renewal, error) {
	r, sent, err := send(ctx, s, "adopt", fence.Name, repeated, func(ctx context.Context) (leasetable.Renewal, error) { return s.Store.Adopt(ctx, fence, holder, ttl) })
	r.Sent = sent
	return r, err
}

func (s *store) renew(ctx context.Context, tries int, all []leasetable.Extension) (map[fencing.Fence]leasetable.Renewal, error) {
	answers, sent, err := send(ctx, s, "renew", fmt.Sprint(len(all), " grants"), tries, func(ctx context.Context) (map[fencing.Fence]leasetable.Renewal, error) {
		return s.Store.Renew(ctx, all)
	})
	return stamp(answers, sent), err
}

func (s *store) Renew(ctx context.Context, all []leasetable.Extension) (map[fencing.Fence]leasetable.Renewal, error) {
	return s.renew(ctx, repeated, all)
}

func (s *store) RenewReserved(ctx context.Context, all []leasetable.Extension, patience time.Duration, overdue func(sent time.Time)) (map[fencing.Fence]leasetable.Renewal, error) {
	sent := time.Now()
	defer time.AfterFunc(patience, func() { overdue(sent) }).Stop()
	return s.renew(ctx, 1, all)
}

func (s *store) CheckGrants(ctx context.Context, grants []fencing.Fence) (map[fencing.Fence]leasetable.Renewal, error) {
	answers, sent, err := send(ctx, s, "check_grants", fmt.Sprint(len(grants), " grants"), repeated, func(ctx context.Context) (map[fencing.Fence]leasetable.Renewal, error) {
		return s.Store.CheckGrants(ctx, grants)
	})
	return stamp(answers, sent), err
}

func (s *store) KeepPermits(ctx context.Context, fence fencing.Fence, n int) (done bool, err error) {
	done, _, err = send(ctx, s, "keep_permits", fence.Name, 1, func(ctx context.Context) (bool, error) { return s.Store.KeepPermits(ctx, fence, n) })
	return done, err
}

func (s *store) Resize(ctx context.Context, name string, capacity int) (before int, err error) {
	before, _, err = send(ctx, s, "resize", name, 1, func(ctx context.Context) (int, error) { return s.Store.Resize(ctx, name, capacity) })
	return before, err
}

func (s *store) GrantedTo(ctx context.Context, name, request string) (granted bool, err error) {
	granted, _, err = send(ctx, s, "granted_to", name, repeated, func(ctx context.Context) (bool, error) { return s.Store.GrantedTo(ctx, name, request) })
	return granted, err
}

func (s *store) Release(ctx context.Context, fence fencing.Fence, minHold time.Duration) (released, notified bool, err error) {
	type answer struct{ released, notified bool }
	a, _, err := send(ctx, s, "release", fence.Name, 1, func(ctx context.Context) (a answer, err error) {
		a.released, a.notified, err = s.Store.Release(ctx, fence, minHold)
		return a, err
	})
	return a.released, a.notified, err
}

func (s *store) ReleaseBatch(ctx context.Context, batch []fencing.Fence, minHold []time.Duration) (notified map[fencing.Fence]bool, err error) {
	notified, _, err = send(ctx, s, "release_batch", fmt.Sprint(len(batch), " grants"), 1, func(ctx context.Context) (map[fencing.Fence]bool, error) {
		return s.Store.ReleaseBatch(ctx, batch, minHold)
	})
	return notified, err
}

func (s *store) ReleasePermits(ctx context.Context, names []string, token fencing.Token, shared bool) (notified map[string]bool, err error) {
	notified, _, err = send(ctx, s, "release_permits", strings.Join(names, ", "), 1, func(ctx context.Context) (map[string]bool, error) {
		return s.Store.ReleasePermits(ctx, names, token, shared)
	})
	return notified, err
}

func (s *store) Revoke(ctx context.Context, r *leasetable.Request) (revoked bool, err error) {
	r = copied(r)
	revoked, _, err = send(ctx, s, "revoke", r.Name, 1, func(ctx context.Context) (bool, error) { return s.Store.Revoke(ctx, r) })
	return revoked, err
}

func (s *store) call(ctx context.Context, op, name string, apply func(ctx context.Context) (leasetable.GrantCall, error)) (leasetable.GrantCall, error) {
	answer, _, err := send(ctx, s, op, name, repeated, apply)
	return answer, err
}

func (s *store) RevokeGrant(ctx context.Context, fence fencing.Fence, reason string) (leasetable.GrantCall, error) {
	return s.call(ctx, "revoke_grant", fence.Name, func(ctx context.Context) (leasetable.GrantCall, error) {
		answer, err := s.Store.RevokeGrant(ctx, fence, reason)
		s.node.world.judge.revokes(fence.Token, answer)
		return answer, err
	})
}

func (s *store) RequestRelease(ctx context.Context, fence fencing.Fence, reason string) (leasetable.GrantCall, error) {
	return s.call(ctx, "request_release", fence.Name, func(ctx context.Context) (leasetable.GrantCall, error) {
		return s.Store.RequestRelease(ctx, fence, reason)
	})
}

func (s *store) SetLabels(ctx context.Context, fence fencing.Fence, labels string, limit int) (leasetable.GrantCall, error) {
	return s.call(ctx, "set_labels", fence.Name, func(ctx context.Context) (leasetable.GrantCall, error) {
		return s.Store.SetLabels(ctx, fence, labels, limit)
	})
}

func (s *store) AwaitGuards(ctx context.Context, fence fencing.Fence) error {
	return s.do(ctx, "await_guards", fence.Name, 1, func(ctx context.Context) error { return s.Store.AwaitGuards(ctx, fence) })
}

func (s *store) Join(ctx context.Context, client string, r *leasetable.Request, waited time.Duration, listens bool) (p leasetable.Position, err error) {
	r = copied(r)
	p, _, err = send(ctx, s, "join", r.Name, repeated, func(ctx context.Context) (leasetable.Position, error) {
		answer, err := s.Store.Join(ctx, client, r, waited, listens)
		s.node.world.judge.joins(s.node, client, answer)
		return answer, err
	})
	return p, err
}

func (s *store) RefreshTickets(ctx context.Context, tickets []leasetable.Ticket, listens bool) (all []leasetable.Position, err error) {
	all, _, err = send(ctx, s, "refresh_tickets", fmt.Sprint(len(tickets), " tickets"), repeated, func(ctx context.Context) ([]leasetable.Position, error) {
		return s.Store.RefreshTickets(ctx, tickets, listens)
	})
	return all, err
}

func (s *store) LeaveQueue(ctx context.Context, t leasetable.Ticket) error {
	sent := time.Now()
	return s.do(ctx, "leave_queue", strings.Join(t.Names, ", "), 1, func(ctx context.Context) error {
		s.node.world.judge.leaves(s.node, t, sent)
		return s.Store.LeaveQueue(ctx, t)
	})
}

func (s *store) DeleteRows(ctx context.Context, tickets []leasetable.Ticket) error {
	return s.do(ctx, "delete_rows", fmt.Sprint(len(tickets), " tickets"), 1, func(ctx context.Context) error { return s.Store.DeleteRows(ctx, tickets) })
}

func (s *store) QuitQueue(ctx context.Context, client string) error {
	return s.do(ctx, "quit_queue", "", 1, func(ctx context.Context) error { return s.Store.QuitQueue(ctx, client) })
}

func (s *store) Watch(ctx context.Context, name, channel string) error {
	return s.do(ctx, "watch", name, repeated, func(ctx context.Context) error { return s.Store.Watch(ctx, name, channel) })
}

func (s *store) Notify(ctx context.Context, channel string) error {
	return s.do(ctx, "notify", "", 1, func(ctx context.Context) error { return s.Store.Notify(ctx, channel) })
}

func (s *store) NestedWait(ctx context.Context, w *leasetable.NestedWait) (cycle string, err error) {
	wait := *w
	wait.Request = copied(w.Request)
	cycle, _, err = send(ctx, s, "nested_wait", wait.Name, repeated, func(ctx context.Context) (string, error) { return s.Store.NestedWait(ctx, &wait) })
	return cycle, err
}

func (s *store) EndNestedWait(ctx context.Context, id string) error {
	return s.do(ctx, "end_nested_wait", "", repeated, func(ctx context.Context) error { return s.Store.EndNestedWait(ctx, id) })
}

func (s *store) Check(ctx context.Context) error {
	return s.do(ctx, "check", "", 1, s.Store.Check)
}

func (s *store) Get(ctx context.Context, name string) (backend.Row, bool, error) {
	type answer struct {
		row   backend.Row
		found bool
	}
	a, _, err := send(ctx, s, "get", name, repeated, func(ctx context.Context) (a answer, err error) {
		a.row, a.found, err = s.Store.Get(ctx, name)
		return a, err
	})
	return a.row, a.found, err
}

// InTx, and Begin: each statement of a transaction is a message, and so is its commit.
func (s *store) InTx(ctx context.Context, _ advisory.Key, fn func(ctx context.Context, tx pgx.Tx) error) error {
	return pgx.BeginFunc(ctx, s, func(t pgx.Tx) error { return fn(ctx, t) })
}

func (s *store) Begin(ctx context.Context) (pgx.Tx, error) {
	inner, _, err := send(ctx, s, "begin", "", 1, s.Store.Begin)
	if err != nil {
		return nil, err
	}
	return &tx{Tx: inner, store: s}, nil
}

// tx is a transaction on one connection: after a message that was lost, it can't continue.
type tx struct {
	pgx.Tx
	store   *store
	broken  error
	effects []func() // of its commit
}

func carryIn[T any](ctx context.Context, t *tx, op string, apply func(ctx context.Context) (T, error)) (answer T, err error) {
	if t.broken != nil {
		return answer, errs.Errorf("pglocktest: the connection of the transaction is gone: %w", t.broken)
	}
	answer, _, err = send(ctx, t.store, op, "", 1, apply)
	if link.ConnectionFailed(err) || ctx.Err() != nil {
		t.broken = err
	}
	return answer, err
}

func (t *tx) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	row, err := carryIn(ctx, t, "query", func(ctx context.Context) (pgx.Row, error) { return t.Tx.QueryRow(ctx, sql, args...), nil })
	if err != nil {
		return failed{err}
	}
	return row
}

func (t *tx) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	return carryIn(ctx, t, "exec", func(ctx context.Context) (pgconn.CommandTag, error) { return t.Tx.Exec(ctx, sql, args...) })
}

func (t *tx) Commit(ctx context.Context) error {
	_, err := carryIn(ctx, t, "commit", func(ctx context.Context) (struct{}, error) {
		err := t.Tx.Commit(ctx)
		if err == nil {
			for _, effect := range t.effects {
				effect()
			}
		}
		return struct{}{}, err
	})
	return err
}

// Rollback needs no message: the server ends a transaction whose connection is gone.
func (t *tx) Rollback(ctx context.Context) error {
	t.store.node.world.mu.Lock()
	defer t.store.node.world.mu.Unlock()
	return t.Tx.Rollback(ctx)
}

// failed is a row that did not come.
type failed struct{ err error }

func (f failed) Scan(...any) error { return f.err }

// Records runs op with the statements of package once as messages.
func (s *store) Records(ctx context.Context, op func(ctx context.Context, all records.Records) error) error {
	return s.Store.Records(ctx, func(ctx context.Context, all records.Records) error { return op(ctx, recordStore{all, s}) })
}

type recordStore struct {
	at    records.Records
	store *store
}

func (r recordStore) Read(ctx context.Context, c records.Call) (records.Record, error) {
	rec, _, err := send(ctx, r.store, "read_record", c.Key, 1, func(ctx context.Context) (records.Record, error) { return r.at.Read(ctx, c) })
	return rec, err
}

func (r recordStore) Claim(ctx context.Context, c records.Call, grant fencing.Fence, holder string, insteadOf fencing.Token) (records.Record, error) {
	rec, _, err := send(ctx, r.store, "claim", c.Key, 1, func(ctx context.Context) (records.Record, error) {
		return r.at.Claim(ctx, c, grant, holder, insteadOf)
	})
	return rec, err
}

func (r recordStore) Finish(ctx context.Context, c records.Call, owner, by fencing.Token, state string, result []byte) (bool, error) {
	changed, _, err := send(ctx, r.store, "finish", c.Key, 1, func(ctx context.Context) (bool, error) {
		return r.at.Finish(ctx, c, owner, by, state, result)
	})
	return changed, err
}

func (r recordStore) Forget(ctx context.Context, c records.Call, owner fencing.Token) error {
	return r.store.do(ctx, "forget", c.Key, 1, func(ctx context.Context) error { return r.at.Forget(ctx, c, owner) })
}
