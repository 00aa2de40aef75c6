// Package waitlist queues the goroutines of a process that wait for the same lock, and holds the
// process's ticket in the queue on the server.
//
// Only the head of each local queue contacts the server, so a thousand waiters cost as many
// statements as one, and acquire the lock in the order of arrival. The exception is an entry whose
// time ends before it was the head, which makes one attempt, without the ticket, before it leaves.
// For each local queue the process holds one ticket, which is a row of lock_waiters.
//
// # States of a local queue
//
//	entries  row                   state and transitions
//	0        -                     absent: Push makes it waiting
//	1+       none, unknown, stale  waiting: DrawTicket makes it joining
//	any      none, unknown, stale  joining: the statement is in progress, for all entries together;
//	                               its answer makes it joined, a lost one leaves an unknown row
//	1+       overflow, queued      joined: an attempt that uses the ticket up, or finds it invalid,
//	                               makes it waiting again, as does a look that does not find it
//	0        stale                 idle: the row stays for the next waiter; after timing.IdleRowTTL
//	                               the refresher deletes it, and the queue is absent
//
// When the last entry leaves a queue that is joined, or whose row is unknown, the row is deleted
// in the background, and the queue is absent. If the queue is joining, this happens when the
// statement ends. Until the ticket is deleted it would keep the next caller of this process from a
// free lock, so Queues.AwaitRemoval waits for that.
//
// Calls that wait for several names at once (leasetable.Request.All) wait in the same queue as
// other calls for the same names. That queue also has one ticket, with a row of lock_waiters for
// each name. It shares no row with the queues of its names, because on the server it is another
// client, with a number.
//
// # States of an entry
//
//	state       its request is used            next states
//	waiting     by nothing                     attempting (BeginAttempt), reserved (Reserve), left
//	attempting  by an attempt of its caller    waiting (EndAttempt)
//	reserved    by a release that hands off    delivered (Deliver), waiting (CancelHandoff), left
//	delivered   by its caller                  waiting (EndHandoff), left
//	left        by nothing                     -
//
// While the caller of a delivered entry checks the result, the entry begins no attempt and is not
// reserved again, because otherwise the same grant would be returned twice and revoked once.
package waitlist

import (
	"container/list"
	"context"
	"log/slog"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/pglock/pglock-go/fencing"
	"github.com/pglock/pglock-go/internal/backoff"
	"github.com/pglock/pglock-go/internal/timing"
	"github.com/pglock/pglock-go/leasetable"
	"github.com/pglock/pglock-go/pglock/observe"
)

// Answer is the outcome of an attempt or of a hand-off: a Grant or an error.
type Answer struct {
	Grant    leasetable.Grant
	Err      error
	Released fencing.Token // of a hand-off: the grant that ended with it
}

// Store has the statements that the Queues need, which package leasetable documents.
type Store interface {
	Join(ctx context.Context, client string, r *leasetable.Request, waited time.Duration, listens bool) (leasetable.Position, error)
	LeaveQueue(ctx context.Context, t leasetable.Ticket) error
	RefreshTickets(ctx context.Context, tickets []leasetable.Ticket, listens bool) ([]leasetable.Position, error)
	DeleteRows(ctx context.Context, tickets []leasetable.Ticket) error
	QuitQueue(ctx context.Context, client string) error
	Notify(ctx context.Context, channel string) error
	Explain(op string, err error) error
}

// Tasks counts and bounds the background work of the Queues.
type Tasks interface {
	// BeginCall counts a call for which Close waits. It returns false when it is too late for one.
	BeginCall() bool
	EndCall()

	// Background runs fn on another goroutine, for which Close waits. ctx ends with the client's
	// life or after bound. It is called inside a counted call.
	Background(bound time.Duration, fn func(ctx context.Context))

	// Retry repeats op until it succeeds, fails for good, or ctx ends. After quit is closed it does
	// not repeat a failure.
	Retry(ctx context.Context, quit <-chan struct{}, op func(ctx context.Context) error) error
}

// Config has what the Queues need of their client.
type Config struct {
	Store   Store
	Tasks   Tasks
	Client  string          // of the rows in lock_waiters, and the notification channel
	Life    context.Context //nolint:containedctx // of the client
	Closing <-chan struct{} // closed when the client begins to close
	Logger  *slog.Logger

	// Listen opens a connection that listens on the channel. If it is nil, waiters poll.
	Listen func(ctx context.Context, channel string) (Subscription, error)
	Needed func() bool // reports whether anything but a waiter waits for a notification
	Report func(ctx context.Context, e observe.ResultEvent)
}

// Queues are the local queues of a client. They are safe for concurrent use.
type Queues struct {
	cfg       Config
	refresher refresher
	listener  listener

	mu       sync.Mutex           // guards the fields below, queues and entries; no I/O under it
	queues   map[string]*queue    // by key; each has entries, a row, or a statement in progress
	numbers  map[string]*queue    // the queues for several names, by number
	last     int                  // number of the newest of these
	solo     map[string]struct{}  // keys with an attempt outside of a queue
	removals map[string]*removals // names and keys with tickets that are being deleted
	looksAt  time.Time            // when the refresher looks at the latest; zero: it looks when it is woken
}

// Key returns the key of the local queue for a name, or for several ones, which are sorted.
func Key(name string, several []string) string {
	if several == nil {
		return name
	}
	return "\x00" + strings.Join(several, "\x00") // no name has a NUL
}

// removals counts the deletions in progress of tickets for a name or a key.
type removals struct {
	pending int
	turn    chan struct{} // holds one while a statement deletes tickets
	done    chan struct{} // closed when all have ended
}

// queue is the local queue for one name, or for several at once. The Queues' mu guards it.
type queue struct {
	key     string    // as returned by Key
	names   []string  // sorted
	client  string    // of its rows in lock_waiters
	number  string    // of a queue for several names, whose client ends with it
	entries list.List // of *Entry; a list, for removals from the middle

	row  row
	join *joinOp // in progress, or nil

	busy   leasetable.Grant // the last answer that the lock is busy
	busyAt time.Time        // when it arrived; zero: there was none

	ahead     int       // waiters before the ticket, at lookedAt
	lookedAt  time.Time // when the ticket was drawn or refreshed
	listenAt  time.Time // when its waiters need the listener, since when they have had tickets; zero: they had none
	lookAt    time.Time // when it is due
	checkAt   time.Time // when to look whether the head is dead; zero: never
	heldUntil time.Time // by the last answer, the grant in the way expires then unless renewed

	emptySince   time.Time // when the last entry left
	contended    time.Time // when others were found to wait, so no hand-off for timing.HandoffPause
	failingSince time.Time // since when the server is unavailable; zero: it answers
}

func (q *queue) head() *Entry {
	if e := q.entries.Front(); e != nil {
		return e.Value.(*Entry)
	}
	return nil
}

// New returns Queues, which start their goroutines with the first ticket and must be stopped.
func New(cfg Config) *Queues {
	l := &Queues{
		cfg: cfg, queues: map[string]*queue{}, numbers: map[string]*queue{},
		solo: map[string]struct{}{}, removals: map[string]*removals{},
	}
	l.refresher.init(l)
	l.listener.init(l)
	return l
}

// Stop ends the goroutines and deletes the client's rows. It is called once, when no entry is left.
// Rows that can't be deleted before ctx ends expire.
func (l *Queues) Stop(ctx context.Context) {
	l.refresher.stop(ctx)
	l.listener.stop()
}

// StartListener opens the listening connection, unless it is open. It is called inside a counted
// call.
func (l *Queues) StartListener() { l.listener.start() }

// Listening reports whether notifications arrive, as far as the client knows.
func (l *Queues) Listening() bool { return l.listener.proven() }

// BeginSolo reports whether a caller may make an attempt outside of the queue, because no local
// call waits or tries, and no other process is known to wait. If so, EndSolo must follow, and other
// callers queue up until then.
func (l *Queues) BeginSolo(key string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, trying := l.solo[key]; trying || l.queues[key] != nil {
		return false
	}
	l.solo[key] = struct{}{}
	return true
}

// EndSolo ends the attempt that BeginSolo has begun.
func (l *Queues) EndSolo(key string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.solo, key)
}

// queueFor returns the queue for r, which is new if there is none. The caller holds mu.
func (l *Queues) queueFor(r *leasetable.Request) *queue {
	key := Key(r.Name, r.All)
	q := l.queues[key]
	if q != nil {
		return q
	}
	q = &queue{key: key, names: r.Names(), client: l.cfg.Client}
	if r.All != nil {
		l.last++
		q.number = strconv.Itoa(l.last)
		q.client += leasetable.AllSuffix + "/" + q.number
		l.numbers[q.number] = q
	}
	l.queues[key] = q
	return q
}

func (l *Queues) drop(q *queue) {
	delete(l.queues, q.key)
	delete(l.numbers, q.number)
}

// Push appends an entry, whose call began at that time, to the local queue for the locks of r.
func (l *Queues) Push(r *leasetable.Request, began time.Time) *Entry {
	e := &Entry{
		request: r, Handed: make(chan *Answer, 1),
		list: l, began: began,
		Head: make(chan struct{}), Woken: make(chan struct{}, 1), Outage: make(chan error, 1),
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	q := l.queueFor(r)
	e.queue = q
	e.Before = q.entries.Len()
	e.elem = q.entries.PushBack(e)
	if q.head() == e {
		close(e.Head)
	}
	return e
}

// beginJoin returns the statement in progress that draws a ticket for q, or a new one, which the
// caller runs. endJoin must follow.
func (l *Queues) beginJoin(q *queue) (op *joinOp, begun bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if q.join != nil {
		return q.join, false
	}
	q.join = &joinOp{done: make(chan struct{})}
	return q.join, true
}

// endJoin records the ticket that was drawn for q, or the failure. If all entries have left
// meanwhile, it returns the ticket to delete, and the number of removals that end with that.
func (l *Queues) endJoin(q *queue, p leasetable.Position, err error) (unneeded *leasetable.Ticket, removals int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	removals, q.join = q.join.removals, nil
	switch {
	case err == nil:
		q.row, q.failingSince = rowOf(p), time.Time{}
		now := time.Now()
		q.ahead, q.lookedAt, q.heldUntil = p.Ahead, now, now.Add(p.Remaining)
		switch {
		case q.row.state == rowOverflow:
			q.listenAt = time.Time{}
		case q.listenAt.IsZero():
			q.listenAt = now.Add(timing.ListenAfter)
		}
		q.lookAt = now.Add(min(q.patience(p.Ahead), timing.FirstLook))
	case leasetable.MaybeApplied(err): // it may have replaced the known row
		q.row = row{rowUnknown, leasetable.AnyTicket}
	}
	if l.looksAt.IsZero() || q.next(time.Now(), l.looksAt).Before(l.looksAt) {
		l.refresher.signal()
	}
	return l.dropIfEmpty(q), removals
}

// dropIfEmpty handles a queue without entries, and returns the ticket to delete, or nil. The caller
// holds mu.
func (l *Queues) dropIfEmpty(q *queue) (unneeded *leasetable.Ticket) {
	if q.entries.Len() > 0 || q.join != nil {
		return nil
	}
	q.emptySince = time.Now()
	if q.row.state == rowStale { // the queue is idle
		return nil
	}
	l.drop(q)
	if q.row.state == rowNone {
		return nil
	}
	t := q.ticket()
	if q.row.state == rowOverflow { // a look in progress may replace the entry by a ticket
		t.Number = leasetable.AnyTicket
	}
	q.row = row{}
	return &t
}

// ticket returns the row in the terms of package leasetable. The caller holds mu.
func (q *queue) ticket() leasetable.Ticket {
	return leasetable.Ticket{Client: q.client, Names: q.names, Number: q.row.ticket, Heavy: q.heavy()}
}

// heavy reports whether the head needs several permits. The caller holds mu.
func (q *queue) heavy() bool {
	e := q.head()
	return e != nil && e.request.Heavy()
}

// removalKeys returns the keys for which a removal of the ticket of q is recorded. These are the
// queue's key, and the names, whose next callers the ticket would keep from a free lock.
func (q *queue) removalKeys() []string {
	if q.number == "" {
		return q.names
	}
	return append([]string{q.key}, q.names...)
}

// beginRemovals records that a ticket is being deleted, and endRemovals must follow. It returns a
// channel that is closed when no ticket for the first key is being deleted any more. The caller
// holds mu.
func (l *Queues) beginRemovals(keys []string) (done <-chan struct{}) {
	for _, key := range keys {
		r := l.removals[key]
		if r == nil {
			r = &removals{turn: make(chan struct{}, 1), done: make(chan struct{})}
			l.removals[key] = r
		}
		r.pending++
	}
	return l.removals[keys[0]].done
}

func (l *Queues) endRemovals(keys []string, n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, key := range keys {
		r := l.removals[key]
		if n == 0 || r == nil {
			continue
		}
		if r.pending -= n; r.pending == 0 {
			delete(l.removals, key)
			close(r.done)
		}
	}
}

// AwaitRemoval waits until the tickets that earlier waiters of this process left behind are
// deleted, or ctx is done, because they would keep the next caller of this process from a free
// lock.
func (l *Queues) AwaitRemoval(ctx context.Context, name string) {
	l.mu.Lock()
	r := l.removals[name]
	l.mu.Unlock()
	if r == nil {
		return
	}
	select { // if both are ready, either is right, because the caller checks ctx itself
	case <-r.done:
	case <-ctx.Done():
	}
}

// WakeHead wakes the head for name, and returns false if there is none.
func (l *Queues) WakeHead(name string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.queues[name].wake()
}

// wake wakes the head, and returns false if there is none. The caller holds mu.
func (q *queue) wake() bool {
	if q == nil || q.entries.Len() == 0 {
		return false
	}
	select {
	case q.head().Woken <- struct{}{}:
	default: // woken already
	}
	return true
}

// WakeAll wakes the head of the queue for several names with that number. It need not handle a
// queue without entries, which has no valid ticket, or deletes it.
func (l *Queues) WakeAll(number string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.numbers[number].wake()
}

// wakeOrBeginRemoval is WakeHead, or, if there is no head and no ticket is being drawn, begins a
// removal, and endRemovals must follow. Both happen in one step, because deleting the client's row
// must not meet the ticket of a new waiter.
func (l *Queues) wakeOrBeginRemoval(name string) (woken bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	q := l.queues[name]
	if q.wake() || q != nil && q.join != nil { // runJoin deletes its ticket
		return true
	}
	l.beginRemovals([]string{name})
	return false
}

func (l *Queues) wakeAll() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.wakeEach()
}

// wakeEach wakes all heads. The caller holds mu.
func (l *Queues) wakeEach() {
	for _, q := range l.queues {
		q.wake()
	}
}

// collectRows returns the tickets that are due, heavy ones and those for several names always, and the
// idle rows, which it forgets. If any are due, so are those that would be in the next seconds, so that
// the tickets of a client are refreshed together.
func (l *Queues) collectRows(now time.Time) (due, idle []leasetable.Ticket) {
	l.mu.Lock()
	defer l.mu.Unlock()
	soon := now
	for _, q := range l.queues {
		if q.row.joined() && !now.Before(q.due()) {
			soon = now.Add(timing.RefreshEvery / 4)
		}
	}
	for _, q := range l.queues {
		switch {
		case q.row.joined():
			if q.heavy() || q.number != "" || !now.Before(q.due()) || q.row.state == rowQueued && q.lookAt.Before(soon) {
				due = append(due, q.ticket())
				q.lookAt = now.Add(backoff.Jitter(timing.SweepEvery)) // unless this look succeeds
				if !now.Before(q.checkAt) {
					q.checkAt = time.Time{}
				}
			}
		case q.entries.Len() == 0 && q.join == nil && time.Since(q.emptySince) > timing.IdleRowTTL:
			idle = append(idle, q.ticket())
			l.drop(q)
		}
	}
	return due, idle
}

// due returns when the next look is due. The caller holds mu.
func (q *queue) due() time.Time {
	if !q.checkAt.IsZero() && q.checkAt.Before(q.lookAt) {
		return q.checkAt
	}
	return q.lookAt
}

// nextLook returns the time until the next ticket is due, or its waiters need the listener, or
// timing.SweepEvery if that is sooner.
func (l *Queues) nextLook() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	l.looksAt = now.Add(timing.SweepEvery)
	for _, q := range l.queues {
		l.looksAt = q.next(now, l.looksAt)
	}
	return max(l.looksAt.Sub(now), 0)
}

// next returns when the queue needs the refresher, or another time that is sooner. The caller holds mu.
func (q *queue) next(now, sooner time.Time) time.Time {
	if due := q.due(); q.row.joined() && due.Before(sooner) {
		sooner = due
	}
	if q.listenAt.After(now) && q.listenAt.Before(sooner) {
		sooner = q.listenAt
	}
	return sooner
}

// patience returns how long after a look the next one is due, with so many waiters before the ticket.
//
// In the overflow list, the first ones look more often than those behind them, so that one of them joins
// the queue soon after it is empty. If the queue moves, they look again after half of the time that it
// needs to reach them.
func (q *queue) patience(ahead int) time.Duration {
	if q.row.state == rowQueued {
		return timing.RefreshEvery
	}
	d := min(timing.RefreshEvery, time.Duration(ahead)*timing.LookStep)
	if moved := q.ahead - ahead; moved > 0 {
		d = min(d, time.Since(q.lookedAt)*time.Duration(ahead)/time.Duration(2*moved))
	}
	return max(d/2+rand.N(d/2+1), timing.LeastLook) // at random, because a fleet often begins to wait together
}

// looked records what the refresher has seen for the ticket. If it has disappeared, because the server
// crashed or this process paused for too long, or the queue has skipped it, the waiters draw a new one.
func (l *Queues) looked(t leasetable.Ticket, p leasetable.Position) {
	l.mu.Lock()
	defer l.mu.Unlock()
	q := l.queues[t.Names[0]]
	if _, number, several := strings.Cut(t.Client, "/"); several {
		q = l.numbers[number]
	}
	if q == nil || !q.row.joined() || q.row.ticket != t.Number {
		return
	}
	was := q.row
	if q.row = rowOf(p); q.row.state == rowStale {
		q.row.ticket = was.ticket
	}
	now := time.Now()
	until := now.Add(p.Remaining)
	sooner := until.Before(q.heldUntil.Add(-timing.SweepEvery))
	q.heldUntil = until
	q.lookAt = now.Add(q.patience(p.Ahead))
	q.ahead, q.lookedAt = p.Ahead, now
	switch {
	case q.row.state == rowStale:
		q.wake()
	case was.state == rowOverflow && q.row.state == rowQueued:
		q.listenAt = now.Add(timing.ListenAfter)
		q.wake() // a release may have missed it
	case q.row.state == rowQueued && p.Free && p.Ahead == 0 && p.Overdue:
		// A notification was lost, perhaps because the server refuses those of the client that released
		// the lock. So all waiters of this client poll until one arrives.
		if !l.listener.doubted.Swap(true) {
			l.wakeEach()
		}
		q.wake()
	case q.row.state == rowQueued && (p.Free || sooner): // the head would sleep too long
		q.wake()
	}
}

// wakeOverflow wakes the heads of the queues whose rows are in the overflow list among the tickets, because
// their look has failed: they make no attempts otherwise, and so would not notice an outage.
func (l *Queues) wakeOverflow(tickets []leasetable.Ticket) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, t := range tickets {
		if q := l.queues[t.Names[0]]; q != nil && q.row == (row{rowOverflow, t.Number}) {
			q.wake()
		}
	}
}

// ReleasedAhead records that the lock was released to waiters before the head for name, who may be dead.
func (l *Queues) ReleasedAhead(name string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if q := l.queues[name]; q != nil && q.row.state == rowQueued {
		q.checkAt = time.Now().Add(timing.HeadGrace + timing.ExpirySpread)
	}
}

// needsListener reports whether waiters rely on notifications: those of some name have had tickets for
// timing.ListenAfter, one after the other perhaps.
func (l *Queues) needsListener() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	for _, q := range l.queues {
		if !q.listenAt.IsZero() && !now.Before(q.listenAt) {
			return true
		}
	}
	return false
}

// hasQueues reports whether there are queues, and so perhaps rows. Without any, the refresher has to be woken.
func (l *Queues) hasQueues() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.queues) == 0 {
		l.looksAt = time.Time{}
	}
	return len(l.queues) > 0
}

// Snapshot describes a queue, for tests.
type Snapshot struct {
	Waiting int    // entries
	Queued  bool   // there is a valid ticket, and the head makes no attempt
	Request string // the ID of the head's request
}

// Snapshot describes the local queue for name at one moment.
func (l *Queues) Snapshot(name string) Snapshot {
	l.mu.Lock()
	defer l.mu.Unlock()
	q := l.queues[name]
	if q == nil {
		return Snapshot{}
	}
	s := Snapshot{Waiting: q.entries.Len()}
	if e := q.head(); e != nil {
		s.Queued, s.Request = q.row.joined() && q.join == nil && e.state == waiting, e.request.ID
	}
	return s
}
