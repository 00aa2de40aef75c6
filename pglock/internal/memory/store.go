//nolint:revive // leasetable.Table and backend.Store document the methods
package memory

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglock/pglock-go/advisory"
	"github.com/pglock/pglock-go/fencing"
	"github.com/pglock/pglock-go/internal/errs"
	"github.com/pglock/pglock-go/internal/schema"
	"github.com/pglock/pglock-go/internal/timing"
	"github.com/pglock/pglock-go/leasetable"
	"github.com/pglock/pglock-go/pglock/inspect"
	"github.com/pglock/pglock-go/pglock/internal/backend"
	"github.com/pglock/pglock-go/pglock/internal/link"
)

// Store is one client's connection to a Server. Its methods are those of backend.Store.
type Store struct {
	server  *Server
	life    context.Context //nolint:containedctx // of the client: ends every statement
	network Network         // nil: one without faults
}

// Network carries the statements of clients to the server, and their answers back.
type Network interface {
	// Carry returns the answer to a statement, or why there is none. apply applies it at the server, where
	// it may arrive late or more than once; sent is when it was sent. life is that of the client.
	Carry(ctx, life context.Context, m Message, apply func(sent time.Time) (any, error)) (answer any, err error)
}

// Message is what a network can know of a statement.
type Message struct {
	Op         string
	About      any           // requests, grants, tickets, or a name
	Client     string        // of a request that waits or is handed a lock
	Reader     fencing.Token // that an upgrade replaces
	Repeatable bool          // it is sent again if its answer is lost
}

// Connect returns the store of a client, for the time of its life.
func (s *Server) Connect(life context.Context) *Store { return &Store{s, life, nil} }

// ConnectBy is Connect through a network.
func (s *Server) ConnectBy(life context.Context, network Network) *Store {
	return &Store{s, life, network}
}

// Database is link.Link.Database.
func (c *Store) Database() string { return fmt.Sprintf("%p", c.server) }

// run runs a statement. It must change nothing but the server, and what it returns must be its own,
// because a network can apply it again when the caller has gone on.
func run[T any](ctx context.Context, c *Store, m Message, statement func() (T, error)) (answer T, err error) {
	switch {
	case ctx.Err() != nil:
		return answer, link.UnsentError{Cause: context.Cause(ctx)}
	case c.life.Err() != nil:
		return answer, errs.ErrClosed
	case c.network == nil:
		return execute(c.server, time.Now(), statement)
	}
	carried, err := c.network.Carry(ctx, c.life, m, func(sent time.Time) (any, error) { return execute(c.server, sent, statement) })
	if err != nil && c.life.Err() != nil {
		err = errs.Errorf("%w: %w", errs.ErrClosed, err)
	}
	answer, _ = carried.(T)
	return answer, err
}

// ask is run for a statement that can't fail.
func ask[T any](ctx context.Context, c *Store, m Message, statement func() T) (T, error) {
	return run(ctx, c, m, func() (T, error) { return statement(), nil })
}

// do is run for a statement without an answer.
func (c *Store) do(ctx context.Context, m Message, statement func()) error {
	_, err := run(ctx, c, m, func() (none struct{}, err error) { statement(); return none, nil })
	return err
}

// execute runs a statement on the server.
func execute[T any](s *Server, sent time.Time, statement func() (T, error)) (answer T, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.down {
		return answer, errDown
	}
	s.sent, s.asked = nil, sent
	return statement()
}

// own returns a request as it is on its way, because its caller uses it for further attempts.
func own(r *leasetable.Request) *leasetable.Request {
	c := *r
	return &c
}

func ownAll(batch []*leasetable.Request) []*leasetable.Request {
	all := make([]*leasetable.Request, len(batch))
	for i, r := range batch {
		all[i] = own(r)
	}
	return all
}

func (c *Store) Check(ctx context.Context) error {
	return c.Explain("open", c.do(ctx, Message{Op: "check"}, func() {}))
}

func (c *Store) Close(context.Context) {}

func (c *Store) Slots() int { return 2 }

func (c *Store) Latency() (most, slowest time.Duration) { return 0, 0 }

func (c *Store) Suspect(time.Time) {}

func (c *Store) Explain(op string, err error) error {
	switch {
	case err == nil, errors.Is(err, errs.ErrClosed), errors.Is(err, backend.ErrNoDatabase):
		return err
	case link.Transient(err):
		return errs.Errorf("pglock: %s: %w: %w", op, errs.ErrUnavailable, err)
	}
	return errs.Errorf("pglock: %s: %w", op, err)
}

func (c *Store) Send(context.Context, leasetable.Statement) (sent time.Time, err error) {
	return sent, backend.ErrNoDatabase
}

func (c *Store) AcquireFast(ctx context.Context, batch []*leasetable.Request) ([]leasetable.Grant, error) {
	return c.acquire(ctx, "acquire_fast", batch, c.server.acquireFast)
}

func (c *Store) AcquireFull(ctx context.Context, batch []*leasetable.Request) ([]leasetable.Grant, error) {
	return c.acquire(ctx, "acquire_full", batch, c.server.acquireFull)
}

func (c *Store) AcquireSlots(ctx context.Context, r *leasetable.Request) (leasetable.Grant, error) {
	grants, err := c.acquire(ctx, "acquire_slots", []*leasetable.Request{r}, c.server.acquire)
	return grants[0], err
}

func (c *Store) acquire(
	ctx context.Context, op string, batch []*leasetable.Request, try func(r *leasetable.Request, now time.Time) leasetable.Grant,
) ([]leasetable.Grant, error) {
	batch = ownAll(batch)
	grants, err := ask(ctx, c, Message{Op: op, About: batch}, func() []leasetable.Grant {
		grants := make([]leasetable.Grant, len(batch))
		for i, r := range batch {
			grants[i] = try(r, time.Now())
		}
		return grants
	})
	if err != nil {
		grants = make([]leasetable.Grant, len(batch))
	}
	return grants, err
}

func (c *Store) HandOff(ctx context.Context, fence fencing.Fence, r *leasetable.Request, client string) (leasetable.Grant, error) {
	r = own(r)
	return ask(ctx, c, Message{Op: "handoff", About: r, Client: client}, func() (g leasetable.Grant) {
		now := time.Now()
		l, old := c.find(fence)
		others := func(w *waiter) bool { return w.client != client }
		if old == nil || l.capacity > 0 || slices.ContainsFunc(l.queue(now, leasetable.NoTicket), others) {
			return g
		}
		l.grants = nil
		c.server.grant(l, r, 1, c.server.draw(l.token), now)
		return leasetable.Grant{Outcome: leasetable.Granted, Token: l.token, Remaining: r.TTL, Sent: c.server.asked}
	})
}

// find returns a lock and the grant of a fence, expired or not, or nil.
func (c *Store) find(fence fencing.Fence) (*lock, *grant) {
	l := c.server.lock(fence.Name)
	for _, g := range l.grants {
		if g.token == fence.Token {
			return l, g
		}
	}
	return l, nil
}

// findLive is find for a grant that has not expired.
func (c *Store) findLive(fence fencing.Fence) (*lock, *grant) {
	l, g := c.find(fence)
	if g != nil && !g.expires.After(time.Now()) {
		g = nil
	}
	return l, g
}

func (c *Store) Adopt(ctx context.Context, fence fencing.Fence, holder string, ttl time.Duration) (leasetable.Renewal, error) {
	r, err := ask(ctx, c, Message{Op: "adopt", About: fence, Repeatable: true}, func() (r leasetable.Renewal) {
		l, g := c.findLive(fence)
		if r, _ = c.told(fence); g != nil {
			g.holder = holder
			r = g.renew(ttl, c.server.asked)
			r.Age, r.ID, r.Permits = time.Since(g.acquired), g.request, leasetable.Permits{Capacity: l.capacity, Weight: g.weight}
			if l.capacity == 0 {
				r.Permits = leasetable.Permits{}
			}
		}
		return r
	})
	return r, c.Explain("adopt", err)
}

func (g *grant) renew(ttl time.Duration, asked time.Time) leasetable.Renewal {
	now := time.Now()
	if until := now.Add(ttl); until.After(g.expires) {
		g.expires = until
	}
	return leasetable.Renewal{Outcome: leasetable.Granted, Remaining: g.expires.Sub(now), Sent: asked, Request: g.asked}
}

func (c *Store) Renew(ctx context.Context, all []leasetable.Extension) (map[fencing.Fence]leasetable.Renewal, error) {
	return c.renew(ctx, all, true)
}

func (c *Store) renew(ctx context.Context, all []leasetable.Extension, again bool) (map[fencing.Fence]leasetable.Renewal, error) {
	answers, err := ask(ctx, c, Message{Op: "renew", About: all, Repeatable: again}, func() map[fencing.Fence]leasetable.Renewal {
		answers := map[fencing.Fence]leasetable.Renewal{}
		for _, x := range all {
			if _, g := c.findLive(x.Fence); g != nil {
				answers[x.Fence] = g.renew(x.TTL, c.server.asked)
			} else if r, known := c.told(x.Fence); known {
				answers[x.Fence] = r
			}
		}
		return answers
	})
	return answers, c.Explain("renew "+strconv.Itoa(len(all))+" leases", err)
}

func (c *Store) RenewReserved(
	ctx context.Context, all []leasetable.Extension, patience time.Duration, overdue func(sent time.Time),
) (map[fencing.Fence]leasetable.Renewal, error) {
	sent := time.Now()
	defer time.AfterFunc(patience, func() { overdue(sent) }).Stop()
	return c.renew(ctx, all, false)
}

// told returns what the holder of a grant is to know.
func (c *Store) told(fence fencing.Fence) (r leasetable.Renewal, known bool) {
	l, g := c.findLive(fence)
	why, revoked := l.revoked[fence.Token]
	if g != nil {
		r.Outcome, r.Request = leasetable.Busy, g.asked
	}
	if revoked {
		r.Revoked = &why
	}
	return r, g != nil || revoked
}

func (c *Store) CheckGrants(ctx context.Context, grants []fencing.Fence) (map[fencing.Fence]leasetable.Renewal, error) {
	return ask(ctx, c, Message{Op: "check_grants", About: grants, Repeatable: true}, func() map[fencing.Fence]leasetable.Renewal {
		answers := map[fencing.Fence]leasetable.Renewal{}
		for _, fence := range grants {
			if r, known := c.told(fence); known {
				answers[fence] = r
			}
		}
		return answers
	})
}

func (c *Store) GrantedTo(ctx context.Context, name, request string) (granted bool, err error) {
	return ask(ctx, c, Message{Op: "granted_to", About: name, Repeatable: true}, func() bool {
		g := c.server.lock(name).byRequest(request)
		return g != nil && g.expires.After(time.Now())
	})
}

func (c *Store) WithConn(context.Context, func(conn *pgx.Conn) error) error {
	return backend.ErrNoDatabase
}

func (c *Store) DoTx(context.Context, advisory.Key, func(context.Context, pgx.Tx) error, ...advisory.DoOption) error {
	return backend.ErrNoDatabase
}

func (c *Store) Get(ctx context.Context, name string) (row backend.Row, found bool, err error) {
	type answer struct {
		row   backend.Row
		found bool
	}
	a, err := ask(ctx, c, Message{Op: "get", About: name, Repeatable: true}, func() answer {
		now := time.Now()
		l := c.server.lock(name)
		var info backend.Row
		info.Name, info.Token = name, l.token
		shared := l.capacity > 0
		info.SetKind(l.capacity)
		info.Remaining = max(l.busyUntil.Sub(now), 0)
		for _, g := range l.live(now) {
			all := inspect.Grant{
				Token: g.token, Holder: g.holder, Labels: maps.Clone(g.labels), Permits: info.PermitsSeen(g.weight), Exclusive: g.whole,
				AcquiredAt: g.acquired, HeldFor: now.Sub(g.acquired), Remaining: g.expires.Sub(now), ReleaseRequested: g.asked != nil,
			}
			if g.asked != nil {
				all.ReleaseReason = *g.asked
			}
			if all.Exclusive {
				info.Holder, info.Labels, info.AcquiredAt, info.HeldFor, info.Remaining = all.Holder, all.Labels, all.AcquiredAt, all.HeldFor, all.Remaining
				info.ReleaseRequested, info.ReleaseReason = all.ReleaseRequested, all.ReleaseReason
			}
			if shared {
				info.Grants = append(info.Grants, all)
			}
		}
		for _, w := range l.queue(now, leasetable.NoTicket) {
			info.Waiters = append(info.Waiters, inspect.Waiter{
				Holder: w.holder, Ticket: w.ticket, Waited: now.Sub(w.since), Permits: info.PermitsSeen(w.weight), Exclusive: shared && w.weight == l.size(),
			})
		}
		return answer{info, l.exists}
	})
	return a.row, a.found, err
}

func (c *Store) Release(ctx context.Context, fence fencing.Fence, minHold time.Duration) (released, notified bool, err error) {
	type answer struct{ released, notified bool }
	a, err := ask(ctx, c, Message{Op: "release", About: fence}, func() (a answer) {
		a.notified, a.released = c.release(fence, minHold)
		return a
	})
	return a.released, a.notified, err
}

// release releases a grant, expired or not.
func (c *Store) release(fence fencing.Fence, minHold time.Duration) (notified, released bool) {
	l, g := c.find(fence)
	if g == nil {
		return false, false
	}
	return c.server.end(l, g, time.Now(), minHold), true
}

func (c *Store) ReleaseBatch(ctx context.Context, batch []fencing.Fence, minHold []time.Duration) (map[fencing.Fence]bool, error) {
	return ask(ctx, c, Message{Op: "release_batch", About: batch}, func() map[fencing.Fence]bool {
		notified := map[fencing.Fence]bool{}
		for i, fence := range batch {
			if woken, released := c.release(fence, minHold[i]); released {
				notified[fence] = woken
			}
		}
		return notified
	})
}

func (c *Store) ReleasePermits(ctx context.Context, names []string, token fencing.Token, _ bool) (map[string]bool, error) {
	return ask(ctx, c, Message{Op: "release_permits", About: names}, func() map[string]bool {
		notified := map[string]bool{}
		for _, name := range names {
			if woken, released := c.release(fencing.Fence{Name: name, Token: token}, 0); released {
				notified[name] = woken
			}
		}
		return notified
	})
}

func (c *Store) Revoke(ctx context.Context, r *leasetable.Request) (revoked bool, err error) {
	r = own(r)
	return ask(ctx, c, Message{Op: "revoke", About: r}, func() (revoked bool) {
		for _, name := range r.Names() {
			l := c.server.lock(name)
			if g := l.byRequest(r.ID); g != nil {
				revoked = true
				c.server.end(l, g, time.Now(), 0)
			}
		}
		return revoked
	})
}

func (c *Store) RevokeGrant(ctx context.Context, fence fencing.Fence, reason string) (leasetable.GrantCall, error) {
	return c.intervene(ctx, "revoke_grant", fence, func(i *leasetable.GrantCall, l *lock, _ *grant) {
		_, before := l.revoked[fence.Token]
		_, g := c.find(fence) // an expired one too
		if i.Done = before || g != nil; !i.Done {
			return
		}
		if !before {
			if l.capacity == 0 {
				clear(l.revoked) // the row of one holder knows of one
			}
			l.revoked[fence.Token] = reason
			if l.finish(g, time.Now(), 0); l.capacity > 0 { // of one holder, AwaitGuards wakes the next one
				c.server.wakeNext(l, time.Now(), l.roomToTell(time.Now()))
			}
		}
		c.server.notify(schema.HolderChannel(schema.Default), strconv.FormatInt(int64(fence.Token), 10))
	})
}

func (c *Store) intervene(
	ctx context.Context, op string, fence fencing.Fence, change func(i *leasetable.GrantCall, l *lock, g *grant),
) (leasetable.GrantCall, error) {
	return ask(ctx, c, Message{Op: op, About: fence, Repeatable: true}, func() leasetable.GrantCall {
		l, g := c.findLive(fence)
		i := leasetable.GrantCall{Found: l.exists, Current: l.token}
		change(&i, l, g)
		return i
	})
}

func (c *Store) RequestRelease(ctx context.Context, fence fencing.Fence, reason string) (leasetable.GrantCall, error) {
	return c.intervene(ctx, "request_release", fence, func(i *leasetable.GrantCall, _ *lock, g *grant) {
		if g != nil {
			i.Done, g.asked = true, &reason
			c.server.notify(schema.HolderChannel(schema.Default), strconv.FormatInt(int64(fence.Token), 10))
		}
	})
}

func (c *Store) SetLabels(ctx context.Context, fence fencing.Fence, labels string, limit int) (leasetable.GrantCall, error) {
	return c.intervene(ctx, "set_labels", fence, func(i *leasetable.GrantCall, l *lock, g *grant) {
		if g == nil {
			return
		}
		all := map[string]string{}
		if g.whole {
			maps.Copy(all, g.labels)
		}
		maps.Copy(all, decode(labels))
		text, _ := json.Marshal(all) // texts only
		if i.Large = len(text) > limit; i.Large || !g.whole {
			return
		}
		i.Done, g.labels = true, all
		c.server.tellWatchers(l, time.Now())
	})
}

func (c *Store) AwaitGuards(ctx context.Context, fence fencing.Fence) error {
	return c.do(ctx, Message{Op: "await_guards", About: fence}, func() {
		l := c.server.lock(fence.Name)
		if _, revoked := l.revoked[fence.Token]; revoked && l.token == fence.Token {
			c.server.wakeNext(l, time.Now(), l.roomToTell(time.Now()))
		}
	})
}

func (c *Store) Upgrade(ctx context.Context, reader fencing.Token, r *leasetable.Request) (leasetable.Grant, error) {
	r = own(r)
	return ask(ctx, c, Message{Op: "upgrade", About: r, Reader: reader}, func() leasetable.Grant {
		now := time.Now()
		l, mine := c.findLive(fencing.Fence{Name: r.Name, Token: reader})
		if w := l.byRequest(r.ID); w != nil && w.expires.After(now) { // a repetition
			return leasetable.Grant{Outcome: leasetable.Granted, Token: w.token, Remaining: w.expires.Sub(now), Sent: c.server.asked}
		}
		if mine == nil || mine.whole {
			return leasetable.Grant{Outcome: leasetable.RequestEnded, Token: l.token, Sent: c.server.asked}
		}
		if other := l.first(now, mine); other != nil {
			return leasetable.Grant{Outcome: leasetable.Busy, Token: other.token, Holder: other.holder, Remaining: other.expires.Sub(now), Sent: c.server.asked}
		}
		l.grants = nil
		c.server.grant(l, r, l.capacity, c.server.draw(l.token), now)
		w := l.byRequest(r.ID)
		if mine.expires.After(w.expires) { // its holder trusts that until the answer
			w.expires = mine.expires
		}
		return leasetable.Grant{Outcome: leasetable.Granted, Token: l.token, Remaining: w.expires.Sub(now), Sent: c.server.asked}
	})
}

func (c *Store) KeepPermits(ctx context.Context, fence fencing.Fence, n int) (done bool, err error) {
	return ask(ctx, c, Message{Op: "keep_permits", About: fence}, func() (done bool) {
		now := time.Now()
		if l, g := c.findLive(fence); g != nil {
			done = true
			if n < g.weight {
				before := l.room(now)
				g.weight, g.whole = n, false
				l.addRoom(now, before)
				c.server.wakeNext(l, now, l.room(now))
			}
		}
		return done
	})
}

func (c *Store) Resize(ctx context.Context, name string, capacity int) (before int, err error) {
	return ask(ctx, c, Message{Op: "resize", About: name}, func() (before int) {
		now := time.Now()
		l := c.server.lock(name)
		switch {
		case !l.exists:
			l.exist(capacity, now)
		case l.capacity == 0:
			before = -1
		case l.capacity == leasetable.ReadersWriter:
			before = -2
		default:
			room := l.room(now)
			for _, g := range l.live(now) {
				g.whole = g.whole && capacity == l.capacity
			}
			before, l.capacity = l.capacity, capacity
			l.addRoom(now, room)
			wake := headOnly
			if before != capacity { // all fail now
				wake = math.MaxInt32
			}
			c.server.wakeNext(l, now, wake)
		}
		return before
	})
}

func (c *Store) Join(ctx context.Context, client string, r *leasetable.Request, waited time.Duration, _ bool) (leasetable.Position, error) {
	r = own(r)
	return ask(ctx, c, Message{Op: "join", About: r, Client: client, Repeatable: true}, func() leasetable.Position {
		now := time.Now()
		c.server.sequence++
		p := leasetable.Position{State: leasetable.Queued, Ticket: c.server.sequence, Free: true}
		for _, name := range r.Names() {
			l := c.server.lock(name)
			p.Ahead = max(p.Ahead, len(l.queue(now, leasetable.NoTicket))-len(l.of(client)))
			w := &waiter{client: client, holder: r.Holder, ticket: p.Ticket, weight: max(r.PermitsOf(name).Weight, 1), since: now.Add(-waited)}
			w.refresh(now, r.Heavy())
			l.remove(client, leasetable.AnyTicket)
			l.waiters = append(l.waiters, w)
			closed := l.closedUntil().Sub(now) // a look at permits that are left is that of the attempt
			p.Free, p.Remaining = p.Free && closed <= 0, max(p.Remaining, closed)
			if r.All != nil {
				c.server.wakeIfFree(l, now) // a ticket that this one replaces may have been the head
			}
		}
		return p
	})
}

// look merges what a waiter sees of a lock into its position, and reports whether there is room for it.
func (c *Store) look(l *lock, w *waiter, now time.Time, p *leasetable.Position) (free bool) {
	free = l.room(now) >= w.weight || l.capacity == 0 && l.room(now) > 0 // its caller will be told the kind
	for _, g := range l.grants {
		free = free || g.dead(now) && !l.busyUntil.After(now) // it is freed by an attempt
	}
	p.Free = p.Free && free
	if !free {
		p.Remaining = max(p.Remaining, l.blockedFor(now))
	}
	return free
}

// of returns the valid tickets of a client.
func (l *lock) of(client string) (own []*waiter) {
	for _, w := range l.queue(time.Now(), leasetable.NoTicket) {
		if w.client == client {
			own = append(own, w)
		}
	}
	return own
}

// remove deletes rows of a client: with that ticket, or with any.
func (l *lock) remove(client string, ticket int64) {
	l.waiters = slices.DeleteFunc(l.waiters, func(w *waiter) bool {
		return w.client == client && (w.ticket == ticket || ticket == leasetable.AnyTicket)
	})
}

func (c *Store) RefreshTickets(ctx context.Context, tickets []leasetable.Ticket, _ bool) ([]leasetable.Position, error) {
	tickets = slices.Clone(tickets)
	return ask(ctx, c, Message{Op: "refresh_tickets", About: tickets, Repeatable: true}, func() []leasetable.Position {
		positions, now := make([]leasetable.Position, len(tickets)), time.Now()
		for i, t := range tickets {
			p := leasetable.Position{State: leasetable.Queued, Ticket: t.Number, Free: true, Overdue: true}
			for _, name := range t.Names {
				l := c.server.lock(name)
				at := slices.IndexFunc(l.waiters, func(w *waiter) bool { return w.client == t.Client && w.ticket == t.Number })
				if at < 0 {
					p.State = leasetable.Lost
					continue
				}
				w := l.waiters[at]
				if t.Number <= l.ticket || l.capacity > 0 && w.weight > l.capacity {
					p.State = leasetable.Lost
				}
				p.Ahead = max(p.Ahead, len(l.queue(now, w.ticket)))
				p.Overdue = c.look(l, w, now, &p) && p.Overdue && l.overdue(now)
				w.refresh(now, t.Heavy)
			}
			positions[i] = p
		}
		return positions
	})
}

func (c *Store) LeaveQueue(ctx context.Context, t leasetable.Ticket) error {
	return c.do(ctx, Message{Op: "leave_queue", About: t}, func() {
		now := time.Now()
		for _, name := range t.Names {
			l := c.server.lock(name)
			at := slices.IndexFunc(l.waiters, func(w *waiter) bool { return w.client == t.Client })
			left := int64(0)
			if at >= 0 && (t.Number == leasetable.AnyTicket || l.waiters[at].ticket == t.Number) {
				left = l.waiters[at].ticket
			}
			l.remove(t.Client, t.Number)
			if l.exists && (l.capacity > 0 || !l.closedUntil().After(now)) && left > l.ticket && len(l.queue(now, left)) == 0 && len(l.queue(now, leasetable.NoTicket)) > 0 {
				l.roomSince = now // for the one behind the head
			}
			c.server.wakeIfFree(l, now)
		}
	})
}

func (c *Store) DeleteRows(ctx context.Context, tickets []leasetable.Ticket) error {
	tickets = slices.Clone(tickets)
	return c.do(ctx, Message{Op: "delete_rows", About: tickets}, func() {
		for _, t := range tickets {
			for _, name := range t.Names {
				c.server.lock(name).remove(t.Client, t.Number)
			}
		}
	})
}

func (c *Store) QuitQueue(ctx context.Context, client string) error {
	return c.do(ctx, Message{Op: "quit_queue"}, func() {
		for _, name := range c.server.order {
			l := c.server.lock(name)
			waited := false
			l.waiters = slices.DeleteFunc(l.waiters, func(w *waiter) bool {
				own := w.client == client || strings.HasPrefix(w.client, client+schema.AllSuffix+"/")
				waited = waited || own && !w.watches()
				return own
			})
			if waited {
				c.server.wakeIfFree(l, time.Now())
			}
		}
	})
}

func (c *Store) Watch(ctx context.Context, name, channel string) error {
	return c.do(ctx, Message{Op: "watch", About: name, Repeatable: true}, func() {
		l := c.server.lock(name)
		until := time.Now().Add(timing.TicketTTL)
		for _, w := range l.waiters {
			if w.client == channel { // also one that waits, which is told anyway
				w.expires = until
				return
			}
		}
		l.waiters = append(l.waiters, &waiter{client: channel, ticket: leasetable.AnyTicket, expires: until})
	})
}

func (c *Store) Notify(ctx context.Context, channel string) error {
	return c.do(ctx, Message{Op: "notify"}, func() { c.server.notify(channel, "") })
}

func (c *Store) Prune(context.Context, time.Duration, int64) (leasetable.Pruned, error) {
	return leasetable.Pruned{Done: true}, nil
}

func (c *Store) LiftTokens(context.Context, string) error { return nil }

func (c *Store) DeleteDeadRows(context.Context) error { return nil }
