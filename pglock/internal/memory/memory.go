// Package memory keeps locks in memory, for tests of programs that use them. It follows the rules of
// the server's statements (migrations and leasetable/sql), one statement at a time, so
// that nothing is ever locked and no answer is ever lost, unless a fault is set.
package memory

import (
	"encoding/json"
	"errors"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglock/pglock-go/fencing"
	"github.com/pglock/pglock-go/internal/errs"
	"github.com/pglock/pglock-go/internal/schema"
	"github.com/pglock/pglock-go/internal/timing"
	"github.com/pglock/pglock-go/leasetable"
	"github.com/pglock/pglock-go/pglock/internal/link"
)

// Server has the locks that its clients share.
type Server struct {
	mu       sync.Mutex // guards all below
	names    map[string]*lock
	order    []string // the names, sorted
	sequence int64    // of tokens and tickets
	sessions []*listener
	sent     []pgconn.Notification    // by this statement
	asked    time.Time                // when this statement was sent
	touched  []*lock                  // since Touched
	marks    map[string]fencing.Token // of resources
	keys     map[string]*key          // of package once
	jobs     map[string]job           // of package schedule
	nested   []*wait                  // calls that wait while they hold locks
	down     bool                     // every statement fails
}

// NewServer returns a server without locks.
func NewServer() *Server {
	return &Server{
		names: map[string]*lock{}, marks: map[string]fencing.Token{}, keys: map[string]*key{}, jobs: map[string]job{},
	}
}

// lock is the row of a name, with its permits and its queue. A lock with one holder has the capacity 0, and
// at most one grant, of weight 1.
type lock struct {
	name     string
	exists   bool // it was granted or resized
	capacity int
	token    fencing.Token // of the last grant
	ticket   int64         // those up to it are used up
	grants   []*grant
	waiters  []*waiter

	busyUntil time.Time // after a release with a minimum hold
	roomSince time.Time // the head could have been granted the lock
	ended     string    // the request of the last grant that was whole or has ended
	revoked   map[fencing.Token]string
	touched   bool // it is in Server.touched
}

// grant is a grant that was not released, alive or expired.
type grant struct {
	token    fencing.Token
	weight   int
	whole    bool // nobody else can have a permit
	request  string
	holder   string
	labels   map[string]string
	acquired time.Time
	expires  time.Time
	asked    *string // the reason why its holder is asked to release it
}

// waiter is a row of the queue. Those who watch have no ticket.
type waiter struct {
	client  string
	holder  string
	ticket  int64
	weight  int
	since   time.Time
	expires time.Time
	keep    time.Time // it is not skipped before that
}

func (w *waiter) watches() bool { return w.ticket == leasetable.AnyTicket }

// refresh extends the ticket, a heavy one less.
func (w *waiter) refresh(now time.Time, heavy bool) {
	w.expires = now.Add(timing.TicketTTL)
	if heavy {
		w.expires = now.Add(timing.KeepTicket)
	}
	if strings.Contains(w.client, "/") { // it is for several names
		w.keep = now.Add(timing.KeepTicket)
	}
}

func (s *Server) lock(name string) *lock {
	l := s.names[name]
	if l == nil {
		l = &lock{name: name, revoked: map[fencing.Token]string{}}
		s.names[name] = l
		at, _ := slices.BinarySearch(s.order, name)
		s.order = slices.Insert(s.order, at, name)
	}
	s.touch(l)
	return l
}

func (s *Server) touch(l *lock) {
	if !l.touched {
		l.touched = true
		s.touched = append(s.touched, l)
	}
}

// size is the sum of the weights that may be granted.
func (l *lock) size() int { return max(l.capacity, 1) }

// live returns the grants that have not expired.
func (l *lock) live(now time.Time) (live []*grant) {
	for _, g := range l.grants {
		if g.expires.After(now) {
			live = append(live, g)
		}
	}
	return live
}

// room returns how many permits are free. Those of grants that have expired, of one holder among others, are
// free when freeExpired has freed them.
func (l *lock) room(now time.Time) int {
	if l.busyUntil.After(now) {
		return 0
	}
	room := l.size()
	for _, g := range l.grants {
		if !g.whole || g.expires.After(now) {
			room -= g.weight
		}
	}
	return room
}

// dead reports that a grant has expired, with permits that freeExpired frees.
func (g *grant) dead(now time.Time) bool {
	return !g.whole && !g.expires.After(now)
}

// deadWeight returns how many permits freeExpired frees.
func (l *lock) deadWeight(now time.Time) (sum int) {
	for _, g := range l.grants {
		if g.dead(now) {
			sum += g.weight
		}
	}
	return sum
}

// freeExpired forgets the grants of permits that have expired.
func (l *lock) freeExpired(now time.Time) {
	before := l.room(now)
	l.grants = slices.DeleteFunc(l.grants, func(g *grant) bool { return g.dead(now) })
	l.addRoom(now, before)
}

// addRoom notes that there is more room than before. If it is enough for the head only now, the head has its
// time to come from now on.
func (l *lock) addRoom(now time.Time, before int) {
	need := 1
	if queue := l.queue(now, leasetable.NoTicket); len(queue) > 0 {
		need = queue[0].weight
	}
	if before < need && l.room(now) >= need {
		l.roomSince = now
	}
}

// exist makes the row of a name, with that number of permits.
func (l *lock) exist(capacity int, now time.Time) {
	if !l.exists {
		l.exists, l.capacity, l.roomSince = true, capacity, now
	}
}

// first returns the live grant that ends first, of those that are not mine, or nil.
func (l *lock) first(now time.Time, mine *grant) (first *grant) {
	for _, g := range l.live(now) {
		if g == mine {
			continue
		}
		if first == nil || g.expires.Before(first.expires) {
			first = g
		}
	}
	return first
}

// blockedFor returns how long others hold the lock at least, if it is not free.
func (l *lock) blockedFor(now time.Time) time.Duration {
	until := l.busyUntil
	if g := l.first(now, nil); g != nil && g.expires.After(until) {
		until = g.expires
	}
	return max(until.Sub(now), 0)
}

// closedUntil returns until when nobody is granted anything, because somebody has the whole lock.
func (l *lock) closedUntil() time.Time {
	until := l.busyUntil
	for _, g := range l.grants {
		if g.whole && g.expires.After(until) {
			until = g.expires
		}
	}
	return until
}

// queue returns those that wait with tickets before a ticket, in order.
func (l *lock) queue(now time.Time, before int64) (queue []*waiter) {
	for _, w := range l.waiters {
		if w.ticket > l.ticket && w.ticket < before && w.expires.After(now) {
			queue = append(queue, w)
		}
	}
	slices.SortFunc(queue, func(a, b *waiter) int { return int(a.ticket - b.ticket) })
	return queue
}

// silent reports whether the head of the queue before a ticket could have been granted what it wants for
// timing.HeadGrace, and no waiter there is kept.
func (l *lock) silent(now time.Time, queue []*waiter, before int64) bool {
	if len(queue) == 0 || l.room(now) < queue[0].weight || slices.ContainsFunc(queue, func(w *waiter) bool { return w.keep.After(now) }) {
		return false
	}
	since := l.freeSince()
	for _, w := range l.waiters {
		if w.ticket > l.ticket && w.ticket < before && !w.expires.After(now) && w.expires.After(since) { // died
			since = w.expires
		}
	}
	return !since.After(now.Add(-timing.HeadGrace))
}

// freeSince returns since when there has been room for the head of a queue, of a lock that has room.
func (l *lock) freeSince() time.Time {
	if closed := l.closedUntil(); closed.After(l.roomSince) {
		return closed
	}
	return l.roomSince
}

// overdue reports whether a lock that is free for a waiter has been so for timing.HeadGrace, and no waiter is
// kept.
func (l *lock) overdue(now time.Time) bool {
	kept := func(w *waiter) bool { return w.keep.After(now) }
	return l.exists && !slices.ContainsFunc(l.queue(now, leasetable.NoTicket), kept) &&
		!l.freeSince().After(now.Add(-timing.HeadGrace))
}

// acquire is acquire_slots. Like its passes, it judges the names that exist, creates the others unless the
// call has lost, and judges all.
func (s *Server) acquire(r *leasetable.Request, now time.Time) leasetable.Grant {
	for _, name := range r.Names() {
		for _, w := range s.lock(name).waiters {
			if queued(r.Ticket) && w.ticket == r.Ticket {
				w.weight = max(r.PermitsOf(name).Weight, 1) // its client may have drawn it for another number
			}
		}
	}
	g, lost := s.judge(r, now, false)
	if !lost {
		g, _ = s.judge(r, now, true)
	}
	return g
}

// verdict is what judge finds out about the names of a request, as in judge_slots.
type verdict struct {
	locks           []*lock
	own             []*grant // of the request itself
	skipped, opened []*lock  // at the names in opened others may have room afterwards
	newest          fencing.Token
	blocked, spent  bool
	refusal         leasetable.Grant // the answer unless the names are granted
}

// judge grants the names if it may create those that don't exist, and reports whether the call has lost.
func (s *Server) judge(r *leasetable.Request, now time.Time, create bool) (g leasetable.Grant, lost bool) {
	names := r.Names()
	v := verdict{refusal: leasetable.Grant{Outcome: leasetable.Busy, Name: names[0], Sent: s.asked}}
	for _, name := range names {
		l, p := s.lock(name), r.PermitsOf(name)
		if create {
			l.exist(p.Capacity, now)
		} else if !l.exists {
			continue
		}
		if l.capacity != p.Capacity {
			return leasetable.Grant{Outcome: leasetable.OtherKind, Name: name, Capacity: l.capacity, Sent: s.asked}, true
		}
		v.judge(l, r, now, create)
	}
	switch {
	case v.spent || len(v.own) > 0 && len(v.own) < len(names):
		v.refusal.Outcome = leasetable.RequestEnded
		return v.refusal, true
	case len(v.own) > 0:
		first := slices.MinFunc(v.own, func(a, b *grant) int { return a.expires.Compare(b.expires) })
		return leasetable.Grant{Outcome: leasetable.Granted, Token: first.token, Remaining: first.expires.Sub(now), Sent: s.asked}, true
	case v.blocked || v.refusal.Invalid:
		return v.refusal, true
	case !create:
		return v.refusal, false
	}
	return s.grantSlots(r, &v, now), false
}

// judge is judge_slot: it adds one name to the verdict.
func (v *verdict) judge(l *lock, r *leasetable.Request, now time.Time, create bool) {
	v.locks = append(v.locks, l)
	v.newest = max(v.newest, l.token)
	if g := l.byRequest(r.ID); g != nil && g.expires.After(now) {
		v.own = append(v.own, g)
		return
	} else if g != nil || l.ended == r.ID {
		v.spent = true
		return
	}
	weight, queue := max(r.PermitsOf(l.name).Weight, 1), l.queue(now, r.Ticket)
	wanted := weight
	if l.silent(now, queue, r.Ticket) {
		v.skipped, v.opened = append(v.skipped, l), append(v.opened, l)
	} else {
		for _, w := range queue {
			wanted += w.weight
		}
		if slices.ContainsFunc(l.grants, func(g *grant) bool { return g.whole }) {
			v.opened = append(v.opened, l)
		}
	}
	if create && l.room(now) < wanted {
		v.opened = append(v.opened, l)
		l.freeExpired(now)
	}
	v.refusal.Ahead = max(v.refusal.Ahead, len(queue))
	v.refusal.Invalid = v.refusal.Invalid || queued(r.Ticket) && l.ticket >= r.Ticket
	if l.room(now) >= wanted {
		return
	}
	dead := l.deadWeight(now)
	v.blocked = v.blocked || create || dead == 0 || l.room(now)+dead < weight
	if d := l.blockedFor(now); l.room(now) < weight && d > v.refusal.Remaining {
		v.refusal.Name, v.refusal.Token, v.refusal.Holder, v.refusal.Remaining = l.name, l.token, "", d
		if g := l.first(now, nil); g != nil {
			v.refusal.Token, v.refusal.Holder = g.token, g.holder
		}
	} else if v.refusal.Remaining == 0 {
		v.refusal.Name, v.refusal.Token = l.name, l.token
	}
}

// grantSlots grants the names, and wakes those for whom there is room afterwards.
func (s *Server) grantSlots(r *leasetable.Request, v *verdict, now time.Time) leasetable.Grant {
	token := s.draw(v.newest)
	for _, l := range v.locks {
		early := l.useUp(r.Ticket, slices.Contains(v.skipped, l), now)
		if l.capacity > 0 && early {
			l.roomSince = l.freeSince()
		} else if l.capacity > 0 {
			l.roomSince = now
		}
		s.grant(l, r, max(r.PermitsOf(l.name).Weight, 1), token, now)
	}
	for _, l := range v.locks {
		if room := l.room(now); l.capacity > 0 && room > 0 && slices.Contains(v.opened, l) {
			s.wakeNext(l, now, room)
		}
	}
	return leasetable.Grant{Outcome: leasetable.Granted, Token: token, Remaining: r.TTL, Sent: s.asked}
}

// acquireFast is leasetable.Table.AcquireFast: it grants names that exist and are free, and
// otherwise, or for a request without a fast statement, it has no answer. A ticket that is used up is behind nobody.
func (s *Server) acquireFast(r *leasetable.Request, now time.Time) leasetable.Grant {
	if r.New {
		if g := s.acquireNew(r, now); g.Outcome != "" {
			return g
		}
	}
	whole := r.Permits.Any() && !r.Permits.Shared()
	if whole || r.Each != nil || r.Ticket != leasetable.NoTicket && (r.All != nil || r.Permits.Any()) {
		return leasetable.Grant{}
	}
	newest := fencing.Token(0)
	for _, name := range r.Names() {
		l, p := s.lock(name), r.PermitsOf(name)
		whole := func(g *grant) bool { return g.whole }
		if !l.exists || l.capacity != p.Capacity || l.room(now) < max(p.Weight, 1) || slices.ContainsFunc(l.grants, whole) ||
			l.ended == r.ID || l.byRequest(r.ID) != nil || len(l.queue(now, r.Ticket)) > 0 {
			return leasetable.Grant{}
		}
		newest = max(newest, l.token)
	}
	token := s.draw(newest)
	for _, name := range r.Names() {
		l := s.lock(name)
		if queued(r.Ticket) {
			l.ticket = max(l.ticket, r.Ticket)
		}
		l.roomSince = now
		s.grant(l, r, max(r.PermitsOf(name).Weight, 1), token, now)
	}
	return leasetable.Grant{Outcome: leasetable.Granted, Token: token, Remaining: r.TTL, Sent: s.asked}
}

// acquireNew is acquire_new.sql.
func (s *Server) acquireNew(r *leasetable.Request, now time.Time) leasetable.Grant {
	l := s.lock(r.Name)
	if r.All != nil || r.Permits.Any() || l.exists || queued(r.Ticket) || len(l.queue(now, r.Ticket)) > 0 {
		return leasetable.Grant{}
	}
	l.exist(0, now)
	s.grant(l, r, 1, s.draw(0), now)
	return leasetable.Grant{Outcome: leasetable.Granted, Token: l.token, Remaining: r.TTL, New: true, Sent: s.asked}
}

// acquireFull is leasetable.Table.AcquireFull.
func (s *Server) acquireFull(r *leasetable.Request, now time.Time) leasetable.Grant {
	if g := s.acquireNew(r, now); g.Outcome != "" {
		return g
	}
	return s.acquire(r, now)
}

func queued(ticket int64) bool {
	return ticket > leasetable.BargeTicket && ticket < leasetable.NoTicket
}

// draw returns a token above all that were drawn, and above another one.
func (s *Server) draw(above fencing.Token) fencing.Token {
	s.sequence = max(s.sequence, int64(above)) + 1
	return fencing.Token(s.sequence)
}

// useUp uses up the ticket of a grant. Others may keep their places before it, unless the head of their
// queue is skipped.
func (l *lock) useUp(ticket int64, skips bool, now time.Time) (early bool) {
	before := l.queue(now, ticket)
	switch {
	case len(before) > 0 && !skips:
		early = true
		if queued(ticket) {
			l.waiters = slices.DeleteFunc(l.waiters, func(w *waiter) bool { return w.ticket == ticket })
		}
	case queued(ticket):
		l.ticket = ticket
	case skips:
		l.ticket = before[0].ticket
	}
	return early
}

func (l *lock) byRequest(id string) *grant {
	for _, g := range l.grants {
		if g.request == id {
			return g
		}
	}
	return nil
}

// grant grants permits of the lock, which has room.
func (s *Server) grant(l *lock, r *leasetable.Request, weight int, token fencing.Token, now time.Time) {
	l.token = token
	if weight == l.size() {
		l.ended = r.ID
	} else {
		l.token = s.draw(token) // no grant's own: see lock_permits
	}
	l.grants = slices.DeleteFunc(l.grants, func(g *grant) bool { return g.whole && !g.expires.After(now) })
	l.grants = append(l.grants, &grant{
		token: token, weight: weight, whole: weight == l.size(), request: r.ID, holder: r.Holder, labels: decode(r.Labels), acquired: now, expires: now.Add(r.TTL),
	})
}

// end ends a grant, and reports whether a waiter was notified.
func (s *Server) end(l *lock, g *grant, now time.Time, minHold time.Duration) (notified bool) {
	l.finish(g, now, minHold)
	return s.wakeNext(l, now, l.roomToTell(now))
}

// finish ends a grant without a word.
func (l *lock) finish(g *grant, now time.Time, minHold time.Duration) {
	before := l.room(now)
	if g.whole {
		before = 0
	}
	l.grants = slices.DeleteFunc(l.grants, func(other *grant) bool { return other == g || other.dead(now) })
	l.ended = g.request
	if l.addRoom(now, before); l.capacity == 0 || before < 1 {
		l.roomSince = now
	}
	if until := now.Add(minHold - max(now.Sub(g.acquired), 0)); until.After(now) { // its clock may have been set back
		l.busyUntil = until
	}
}

func (s *Server) tellWatchers(l *lock, now time.Time) {
	for _, w := range l.waiters {
		if w.watches() && w.expires.After(now) {
			s.notify(w.client, l.name)
		}
	}
}

// headOnly is the room that notifies the head of a queue, whatever it wants.
const headOnly = math.MinInt

// roomToTell is the room that those who wait are notified of: with one holder, the head learns of any
// change.
func (l *lock) roomToTell(now time.Time) int {
	if l.capacity == 0 {
		return headOnly
	}
	return l.room(now)
}

// wakeIfFree wakes those for whom there is room, unless somebody has the whole lock.
func (s *Server) wakeIfFree(l *lock, now time.Time) {
	if l.exists && !l.closedUntil().After(now) {
		s.wakeNext(l, now, l.roomToTell(now))
	}
}

// wakeNext is wake_next.
func (s *Server) wakeNext(l *lock, now time.Time, room int) (woken bool) {
	s.tellWatchers(l, now)
	var since time.Time
	for _, w := range l.queue(now, leasetable.NoTicket) {
		client, number, _ := strings.Cut(w.client, "/") // the number is that of a caller for several names
		if room != headOnly && w.weight > room || room == headOnly && woken {
			if room != headOnly {
				room = 0 // nothing for those behind it
			}
			if number != "" {
				continue
			}
			if woken && since.Before(now.Add(-time.Second)) {
				s.notify(client+schema.NextSuffix, l.name)
			}
			break
		}
		if room != headOnly {
			room -= w.weight
		}
		woken, since = true, w.since
		if number == "" {
			number = l.name
		}
		s.notify(client, number)
	}
	return woken
}

func decode(labels string) map[string]string {
	all := map[string]string{}
	_ = json.Unmarshal([]byte(labels), &all) // of this package's own client
	return all
}

// SetDown makes every statement fail, or ends that.
func (s *Server) SetDown(down bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.down = down
	if down {
		s.endSessions()
	}
}

// errDown is the error of a server that is down.
var errDown error = link.UnsentError{Cause: errs.Mark(errors.New("the server is down"), errs.ErrUnavailable)}

// Expire ends the grants of a name, or that with the token if it is not 0, as if their time were over. The
// next waiters are woken.
func (s *Server) Expire(name string, token fencing.Token) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sent = nil
	now, l := time.Now(), s.lock(name)
	for _, g := range l.live(now) {
		if token == 0 || g.token == token {
			g.expires = now
		}
	}
	l.freeExpired(now)
	s.wakeIfFree(l, now)
}

// Advance makes all grants and tickets older. Those who wait are woken first, because their tickets may be too
// old then.
func (s *Server) Advance(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sent = nil
	now := time.Now()
	for _, name := range s.order {
		l := s.lock(name)
		for _, g := range l.grants {
			g.acquired, g.expires = g.acquired.Add(-d), g.expires.Add(-d)
		}
		l.busyUntil, l.roomSince = l.busyUntil.Add(-d), l.roomSince.Add(-d)
		l.freeExpired(now)
		s.wakeIfFree(l, now)
		for _, w := range l.waiters {
			if !w.watches() {
				w.since, w.expires, w.keep = w.since.Add(-d), w.expires.Add(-d), w.keep.Add(-d)
			}
		}
	}
	for _, k := range s.keys {
		k.StartedAt, k.expires = k.StartedAt.Add(-d), k.expires.Add(-d)
	}
}
