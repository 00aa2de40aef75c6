package waitlist

import (
	"container/list"
	"context"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/pglock/pglock-go/fencing"
	"github.com/pglock/pglock-go/internal/schema"
	"github.com/pglock/pglock-go/leasetable"
	"github.com/pglock/pglock-go/pglock/internal/backend"
	"github.com/pglock/pglock-go/pglock/observe"
)

// Answer is the outcome of an attempt or of a hand-off: a Grant or an error.
type Answer struct {
	Grant    leasetable.Grant
	Err      error
	Released fencing.Token // of a hand-off: the grant that ended with it
}

// Config has what the Queues need of their client, and is immutable after New.
type Config struct {
	Store   backend.Table
	Client  string          // of the rows in lock_waiters, and the notification channel
	Life    context.Context //nolint:containedctx // of the client
	Closing <-chan struct{} // closed when the client begins to close
	Logger  *slog.Logger

	// BeginCall counts a call for which Close waits, and EndCall ends it. It returns false when it
	// is too late for one.
	BeginCall func() bool
	EndCall   func()
	// Background runs fn on another goroutine, for which Close waits. ctx ends with the client's
	// life or after bound. It is called inside a counted call.
	Background func(bound time.Duration, fn func(ctx context.Context))
	// Retry repeats op until it succeeds, fails permanently, or ctx ends. After quit is closed it
	// does not repeat a failure.
	Retry func(ctx context.Context, quit <-chan struct{}, op func(ctx context.Context) error) error

	// Listen opens a connection that listens on the channel. If it is nil, waiters poll.
	Listen func(ctx context.Context, channel string) (Subscription, error)
	Needed func() bool // reports whether anything but a waiter waits for a notification
	Report func(ctx context.Context, e observe.ResultEvent)
}

// Queues are the local queues of a client. They are safe for concurrent use.
type Queues struct {
	cfg       Config
	refresher refresher // synchronizes itself
	listener  listener  // synchronizes itself

	mu       sync.Mutex           // guards the fields below, queues and entries; no I/O under it
	queues   map[string]*queue    // by key; each has entries, a row, or a statement in progress
	numbers  map[string]*queue    // the queues for several names, by number
	last     int                  // number of the newest of these
	solo     map[string]struct{}  // keys with an attempt outside of a queue
	removals map[string]*removals // names and keys with tickets that are being deleted
	looksAt  time.Time            // when the refresher's next round is, at the latest; zero: when it is woken
}

// Key returns the key of the local queue for a name, or for several ones, which are sorted.
func Key(name string, several []string) string {
	if several == nil {
		return name
	}
	return "\x00" + strings.Join(several, "\x00") // no name has a NUL
}

// queue is the local queue for one name, or for several at once.
type queue struct {
	// immutable after queueFor
	key    string   // as returned by Key
	names  []string // sorted
	client string   // of its rows in lock_waiters
	number string   // of a queue for several names, whose client ends with it
	keys   []string // key and names, whose next callers the ticket would keep from a free lock

	// guarded by the Queues' mu
	entries      list.List // of *Entry; a list, for removals from the middle
	row          Row
	join         *joinOp // in progress, or nil
	looks        looks
	busy         leasetable.Grant // the last answer that the lock is busy
	busyAt       time.Time        // when it arrived; zero: there was none
	heldUntil    time.Time        // by the last answer or look, the blocking grant expires then unless renewed
	emptySince   time.Time        // when the last entry left
	contended    time.Time        // when others were found to wait, so no hand-off for timing.HandoffPause
	failingSince time.Time        // since when the server is unavailable; zero: it answers
}

// head returns, under mu, the first entry or nil.
func (q *queue) head() *Entry {
	if e := q.entries.Front(); e != nil {
		return e.Value.(*Entry)
	}
	return nil
}

// heavy reports, under mu, whether the head needs several permits.
func (q *queue) heavy() bool {
	e := q.head()
	return e != nil && e.request.Heavy()
}

// New returns Queues, which start their goroutines with the first ticket and must be stopped.
func New(cfg Config) *Queues {
	l := &Queues{
		cfg: cfg, queues: map[string]*queue{}, numbers: map[string]*queue{},
		solo: map[string]struct{}{}, removals: map[string]*removals{},
	}
	l.refresher = refresher{list: l, wake: make(chan struct{}, 1), quit: make(chan struct{})}
	l.listener = listener{list: l, wanted: make(chan struct{}, 1)}
	l.listener.ctx, l.listener.quit = context.WithCancel(cfg.Life)
	return l
}

// Stop ends the goroutines and deletes the client's rows. It is called once, when no entry is left.
// Rows that can't be deleted before ctx ends expire.
func (l *Queues) Stop(ctx context.Context) {
	l.refresher.stop(ctx)
	l.listener.stop()
}

// StartListener opens the listening connection, unless it is open, inside a counted call.
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

// queueFor returns, under mu, the queue for r, which is new if there is none.
func (l *Queues) queueFor(r *leasetable.Request) *queue {
	key := Key(r.Name, r.All)
	if q := l.queues[key]; q != nil {
		return q
	}
	q := &queue{key: key, names: r.Names(), client: l.cfg.Client}
	q.keys = q.names
	if r.All != nil {
		l.last++
		q.number = strconv.Itoa(l.last)
		q.client += schema.AllSuffix + "/" + q.number
		l.numbers[q.number] = q
		q.keys = append([]string{key}, q.names...)
	}
	l.queues[key] = q
	return q
}

// drop forgets, under mu, a queue without entries.
func (l *Queues) drop(q *queue) {
	delete(l.queues, q.key)
	delete(l.numbers, q.number)
}

// Push appends an entry, whose call began at that time, to the local queue for the locks of r.
func (l *Queues) Push(r *leasetable.Request, began time.Time) *Entry {
	l.mu.Lock()
	defer l.mu.Unlock()
	q := l.queueFor(r)
	e := &Entry{
		Head: make(chan struct{}), Woken: make(chan struct{}, 1), Handed: make(chan *Answer, 1), Outage: make(chan error, 1),
		Before: q.entries.Len(), list: l, queue: q, began: began, request: r,
	}
	e.elem = q.entries.PushBack(e)
	if q.head() == e {
		close(e.Head)
	}
	return e
}

// WakeHead wakes the head for name, and returns false if there is none.
func (l *Queues) WakeHead(name string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.queues[name].wake()
}

// wake wakes the head, under mu, and returns false if there is none.
func (q *queue) wake() bool {
	if q == nil || q.entries.Len() == 0 {
		return false
	}
	offer(q.head().Woken, struct{}{})
	return true
}

// offer sends v to a channel with a buffer of one, unless that is full.
func offer[T any](c chan<- T, v T) {
	select {
	case c <- v:
	default:
	}
}

// WakeMulti wakes the head of the queue for several names with that number. It need not handle a
// queue without entries, which has no valid ticket, or deletes it.
func (l *Queues) WakeMulti(number string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.numbers[number].wake()
}

// wakeAll wakes the heads of all queues, those that have waited the longest first.
func (l *Queues) wakeAll() {
	l.mu.Lock()
	defer l.mu.Unlock()
	var heads []*Entry
	for _, q := range l.queues {
		if e := q.head(); e != nil {
			heads = append(heads, e)
		}
	}
	slices.SortFunc(heads, func(a, b *Entry) int { return a.began.Compare(b.began) })
	for _, e := range heads {
		e.queue.wake()
	}
}

// Snapshot returns, for tests, the number of entries in the queue for name, whether it has a ticket
// while its head makes no attempt, and the ID of the head's request.
func (l *Queues) Snapshot(name string) (entries int, queued bool, request string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	q := l.queues[name]
	if q == nil || q.head() == nil {
		return 0, false, ""
	}
	e := q.head()
	return q.entries.Len(), q.row.Joined() && q.join == nil && e.state == waiting, e.request.ID
}
