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

// Network is the way of a client's statements to the server. With an error of Send, the statement
// does not reach the server, and with one of Receive, its answer does not reach the client.
type Network interface {
	Send(ctx context.Context) error
	Receive(ctx context.Context) error
}

// Connect returns the store of a client, for the time of its life.
func (s *Server) Connect(life context.Context) *Store { return &Store{s, life, nil} }

// ConnectBy is Connect through a network.
func (s *Server) ConnectBy(life context.Context, network Network) *Store {
	return &Store{s, life, network}
}

// Database is link.Link.Database.
func (c *Store) Database() string { return fmt.Sprintf("%p", c.server) }

// run runs a statement.
func (c *Store) run(ctx context.Context, statement func()) error {
	if c.network == nil {
		return c.execute(ctx, statement)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(c.life, cancel)()
	err := c.network.Send(ctx)
	if err == nil {
		if err = c.execute(ctx, statement); err == nil {
			err = c.network.Receive(ctx)
		}
	}
	if err != nil && c.life.Err() != nil {
		return errs.Errorf("%w: %w", errs.ErrClosed, err)
	}
	return err
}

// execute runs a statement on the server.
func (c *Store) execute(ctx context.Context, statement func()) error {
	s := c.server
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case ctx.Err() != nil:
		return link.UnsentError{Cause: context.Cause(ctx)}
	case c.life.Err() != nil:
		return errs.ErrClosed
	case s.down:
		return errDown
	}
	s.sent = nil
	statement()
	return nil
}

func (c *Store) Check(ctx context.Context) error { return c.Explain("open", c.run(ctx, func() {})) }

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
	grants := make([]leasetable.Grant, len(batch))
	return grants, c.run(ctx, func() {
		for i, r := range batch {
			grants[i] = c.server.acquireFast(r, time.Now())
		}
	})
}

func (c *Store) AcquireFull(ctx context.Context, batch []*leasetable.Request) ([]leasetable.Grant, error) {
	grants := make([]leasetable.Grant, len(batch))
	return grants, c.run(ctx, func() {
		for i, r := range batch {
			grants[i] = c.server.acquire(r, time.Now())
		}
	})
}

func (c *Store) AcquireSlots(ctx context.Context, r *leasetable.Request) (g leasetable.Grant, err error) {
	err = c.run(ctx, func() { g = c.server.acquire(r, time.Now()) })
	return g, err
}

func (c *Store) HandOff(ctx context.Context, fence fencing.Fence, r *leasetable.Request, client string) (g leasetable.Grant, err error) {
	err = c.run(ctx, func() {
		now := time.Now()
		l, old := c.find(fence)
		others := func(w *waiter) bool { return w.client != client }
		if old == nil || l.capacity > 0 || slices.ContainsFunc(l.queue(now, leasetable.NoTicket), others) {
			return
		}
		l.grants = nil
		c.server.grant(l, r, 1, c.server.draw(l.token), now)
		g = leasetable.Grant{Outcome: leasetable.Granted, Token: l.token, Remaining: r.TTL, Sent: now}
	})
	return g, err
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

func (c *Store) Adopt(ctx context.Context, fence fencing.Fence, holder string, ttl time.Duration) (r leasetable.Renewal, err error) {
	err = c.run(ctx, func() {
		l, g := c.findLive(fence)
		if r, _ = c.told(fence); g != nil {
			g.holder = holder
			r = g.renew(ttl)
			r.Age, r.ID, r.Permits = time.Since(g.acquired), g.request, leasetable.Permits{Capacity: l.capacity, Weight: g.weight}
			if l.capacity == 0 {
				r.Permits = leasetable.Permits{}
			}
		}
	})
	return r, c.Explain("adopt", err)
}

func (g *grant) renew(ttl time.Duration) leasetable.Renewal {
	now := time.Now()
	if until := now.Add(ttl); until.After(g.expires) {
		g.expires = until
	}
	return leasetable.Renewal{Outcome: leasetable.Granted, Remaining: g.expires.Sub(now), Sent: now, Request: g.asked}
}

func (c *Store) Renew(ctx context.Context, all []leasetable.Extension) (map[fencing.Fence]leasetable.Renewal, error) {
	answers := map[fencing.Fence]leasetable.Renewal{}
	err := c.run(ctx, func() {
		for _, x := range all {
			if _, g := c.findLive(x.Fence); g != nil {
				answers[x.Fence] = g.renew(x.TTL)
			} else if r, known := c.told(x.Fence); known {
				answers[x.Fence] = r
			}
		}
	})
	return answers, c.Explain("renew "+strconv.Itoa(len(all))+" leases", err)
}

func (c *Store) RenewReserved(
	ctx context.Context, all []leasetable.Extension, _ time.Duration, _ func(time.Time),
) (map[fencing.Fence]leasetable.Renewal, error) {
	return c.Renew(ctx, all)
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
	answers := map[fencing.Fence]leasetable.Renewal{}
	return answers, c.run(ctx, func() {
		for _, fence := range grants {
			if r, known := c.told(fence); known {
				answers[fence] = r
			}
		}
	})
}

func (c *Store) GrantedTo(ctx context.Context, name, request string) (granted bool, err error) {
	err = c.run(ctx, func() {
		g := c.server.lock(name).byRequest(request)
		granted = g != nil && g.expires.After(time.Now())
	})
	return granted, err
}

func (c *Store) WithConn(context.Context, func(conn *pgx.Conn) error) error {
	return backend.ErrNoDatabase
}

func (c *Store) DoTx(context.Context, advisory.Key, func(context.Context, pgx.Tx) error, ...advisory.DoOption) error {
	return backend.ErrNoDatabase
}

func (c *Store) Get(ctx context.Context, name string) (info backend.Row, found bool, err error) {
	info.Name = name
	err = c.run(ctx, func() {
		now := time.Now()
		l := c.server.lock(name)
		found, info.Token = l.exists, l.token
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
	})
	return info, found, err
}

func (c *Store) Release(ctx context.Context, fence fencing.Fence, minHold time.Duration) (released, notified bool, err error) {
	err = c.run(ctx, func() { notified, released = c.release(fence, minHold) })
	return released && err == nil, notified, err
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
	notified := map[fencing.Fence]bool{}
	return notified, c.run(ctx, func() {
		for i, fence := range batch {
			if woken, released := c.release(fence, minHold[i]); released {
				notified[fence] = woken
			}
		}
	})
}

func (c *Store) ReleasePermits(ctx context.Context, names []string, token fencing.Token, _ bool) (map[string]bool, error) {
	notified := map[string]bool{}
	return notified, c.run(ctx, func() {
		for _, name := range names {
			if woken, released := c.release(fencing.Fence{Name: name, Token: token}, 0); released {
				notified[name] = woken
			}
		}
	})
}

func (c *Store) Revoke(ctx context.Context, r *leasetable.Request) (revoked bool, err error) {
	err = c.run(ctx, func() {
		for _, name := range r.Names() {
			l := c.server.lock(name)
			if g := l.byRequest(r.ID); g != nil {
				revoked = true
				c.server.end(l, g, time.Now(), 0)
			}
		}
	})
	return revoked, err
}

func (c *Store) RevokeGrant(ctx context.Context, fence fencing.Fence, reason string) (i leasetable.GrantCall, err error) {
	err = c.intervene(ctx, fence, &i, func(l *lock, _ *grant) {
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
	return i, err
}

func (c *Store) intervene(ctx context.Context, fence fencing.Fence, i *leasetable.GrantCall, change func(l *lock, g *grant)) error {
	return c.run(ctx, func() {
		l, g := c.findLive(fence)
		i.Found, i.Current = l.exists, l.token
		change(l, g)
	})
}

func (c *Store) RequestRelease(ctx context.Context, fence fencing.Fence, reason string) (i leasetable.GrantCall, err error) {
	err = c.intervene(ctx, fence, &i, func(_ *lock, g *grant) {
		if g != nil {
			i.Done, g.asked = true, &reason
			c.server.notify(schema.HolderChannel(schema.Default), strconv.FormatInt(int64(fence.Token), 10))
		}
	})
	return i, err
}

func (c *Store) SetLabels(ctx context.Context, fence fencing.Fence, labels string, limit int) (i leasetable.GrantCall, err error) {
	err = c.intervene(ctx, fence, &i, func(l *lock, g *grant) {
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
	return i, err
}

func (c *Store) AwaitGuards(ctx context.Context, fence fencing.Fence) error {
	return c.run(ctx, func() {
		l := c.server.lock(fence.Name)
		if _, revoked := l.revoked[fence.Token]; revoked && l.token == fence.Token {
			c.server.wakeNext(l, time.Now(), l.roomToTell(time.Now()))
		}
	})
}

func (c *Store) Upgrade(ctx context.Context, reader fencing.Token, r *leasetable.Request) (g leasetable.Grant, err error) {
	err = c.run(ctx, func() {
		now := time.Now()
		l, mine := c.findLive(fencing.Fence{Name: r.Name, Token: reader})
		if w := l.byRequest(r.ID); w != nil && w.expires.After(now) { // a repetition
			g = leasetable.Grant{Outcome: leasetable.Granted, Token: w.token, Remaining: w.expires.Sub(now), Sent: now}
			return
		}
		if g = (leasetable.Grant{Outcome: leasetable.RequestEnded, Token: l.token, Sent: now}); mine == nil || mine.whole {
			return
		}
		if other := l.first(now, mine); other != nil {
			g = leasetable.Grant{Outcome: leasetable.Busy, Token: other.token, Holder: other.holder, Remaining: other.expires.Sub(now), Sent: now}
			return
		}
		l.grants = nil
		c.server.grant(l, r, l.capacity, c.server.draw(l.token), now)
		w := l.byRequest(r.ID)
		if mine.expires.After(w.expires) { // its holder trusts that until the answer
			w.expires = mine.expires
		}
		g = leasetable.Grant{Outcome: leasetable.Granted, Token: l.token, Remaining: w.expires.Sub(now), Sent: now}
	})
	return g, err
}

func (c *Store) KeepPermits(ctx context.Context, fence fencing.Fence, n int) (done bool, err error) {
	err = c.run(ctx, func() {
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
	})
	return done, err
}

func (c *Store) Resize(ctx context.Context, name string, capacity int) (before int, err error) {
	err = c.run(ctx, func() {
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
	})
	return before, err
}

func (c *Store) Join(ctx context.Context, client string, r *leasetable.Request, waited time.Duration, _ bool) (p leasetable.Position, err error) {
	err = c.run(ctx, func() {
		now := time.Now()
		c.server.sequence++
		p = leasetable.Position{State: leasetable.Queued, Ticket: c.server.sequence, Free: true}
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
	})
	return p, err
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
	positions := make([]leasetable.Position, len(tickets))
	return positions, c.run(ctx, func() {
		now := time.Now()
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
	})
}

func (c *Store) LeaveQueue(ctx context.Context, t leasetable.Ticket) error {
	return c.run(ctx, func() {
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
	return c.run(ctx, func() {
		for _, t := range tickets {
			for _, name := range t.Names {
				c.server.lock(name).remove(t.Client, t.Number)
			}
		}
	})
}

func (c *Store) QuitQueue(ctx context.Context, client string) error {
	return c.run(ctx, func() {
		for _, name := range c.server.order {
			l := c.server.names[name]
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
	return c.run(ctx, func() {
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
	return c.run(ctx, func() { c.server.notify(channel, "") })
}

func (c *Store) Prune(context.Context, time.Duration, string) (leasetable.Pruned, error) {
	return leasetable.Pruned{Done: true}, nil
}

func (c *Store) LiftTokens(context.Context, string) error { return nil }

func (c *Store) DeleteDeadRows(context.Context) error { return nil }
