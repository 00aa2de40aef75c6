package waitlist

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/pglock/pglock-go/internal/errs"
	"github.com/pglock/pglock-go/leasetable"
	"github.com/pglock/pglock-go/pglock/internal/backend"
	"github.com/pglock/pglock-go/pglock/observe"
)

// errLost is an error after which the statement may have been applied, errRefused one after which
// it was not.
var (
	errLost    = errors.New("the answer was lost")
	errRefused = errs.ErrUnavailable
)

// before is the number of waiters before an entry of the overflow list.
const before = 20

// server is a fake of the queue on the server, for one client. Each statement takes a millisecond.
type server struct {
	backend.Table // nil, for what the Queues don't need

	mu        sync.Mutex
	drawn     int64            // tickets so far
	rows      map[string]int64 // name to ticket
	failJoin  error            // of the next Join
	failLeave int              // so many LeaveQueue fail
	leaving   int              // LeaveQueue in progress
	together  int              // and the most of them so far
	refreshed []time.Time
	quit      bool

	overflow bool                                          // Join adds to the overflow list
	ahead    int                                           // waiters before such an entry; 0: before
	look     func(t leasetable.Ticket) leasetable.Position // of a refresh; nil: the lock is held
	down     error                                         // of a refresh
}

func (s *server) do(fn func() error) error {
	pass(time.Millisecond)
	s.mu.Lock()
	defer s.mu.Unlock()
	return fn()
}

func (s *server) Join(_ context.Context, _ string, r *leasetable.Request, _ time.Duration, _ bool) (p leasetable.Position, err error) {
	err = s.do(func() error {
		err := s.failJoin
		s.failJoin = nil
		if !errors.Is(err, errRefused) {
			s.drawn++
			p = leasetable.Position{State: leasetable.Queued, Ticket: s.drawn, Remaining: time.Hour}
			if s.overflow {
				p.State, p.Ahead = leasetable.InOverflow, cmp.Or(s.ahead, before)
			}
			for _, name := range r.Names() {
				s.rows[name] = p.Ticket
			}
		}
		return err
	})
	if err != nil {
		return leasetable.Position{}, err
	}
	return p, nil
}

func (s *server) LeaveQueue(_ context.Context, t leasetable.Ticket) error {
	s.set(func() { s.leaving++; s.together = max(s.together, s.leaving) })
	pass(time.Millisecond) // slower than Join, which may overtake it
	return s.do(func() error {
		s.leaving--
		if s.failLeave > 0 {
			s.failLeave--
			return errRefused
		}
		s.remove(t)
		return nil
	})
}

// remove deletes the rows of a ticket. The caller holds mu.
func (s *server) remove(t leasetable.Ticket) {
	for _, name := range t.Names {
		if t.Number == leasetable.AnyTicket || s.rows[name] == t.Number {
			delete(s.rows, name)
		}
	}
}

func (s *server) RefreshTickets(_ context.Context, tickets []leasetable.Ticket, _ bool) (seen []leasetable.Position, err error) {
	err = s.do(func() error {
		s.refreshed = append(s.refreshed, time.Now())
		if s.down != nil {
			return s.down
		}
		for _, t := range tickets {
			p := leasetable.Position{State: t.State, Ticket: t.Number, Remaining: time.Hour}
			if s.look != nil {
				p = s.look(t)
			} else if slices.ContainsFunc(t.Names, func(name string) bool { return s.rows[name] != t.Number }) {
				p.State = leasetable.Lost
			}
			seen = append(seen, p)
		}
		return nil
	})
	return seen, err
}

func (s *server) DeleteRows(_ context.Context, tickets []leasetable.Ticket) error {
	return s.do(func() error {
		for _, t := range tickets {
			s.remove(t)
		}
		return nil
	})
}

func (s *server) QuitQueue(context.Context, string) error {
	return s.do(func() error { clear(s.rows); s.quit = true; return nil })
}

func (s *server) Notify(context.Context, string) error { return nil }

func (s *server) Explain(_ string, err error) error { return err }

// set changes what the server does.
func (s *server) set(change func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change()
}

// loseRows deletes all rows, as a crash of the server does.
func (s *server) loseRows() {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.rows)
}

// refreshes returns how many statements have refreshed tickets.
func (s *server) refreshes() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.refreshed)
}

// row returns the ticket of the row for name, or 0.
func (s *server) row(name string) int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.rows[name]
}

// client is a fake of the client.
type client struct {
	calls  sync.WaitGroup
	closed bool // it is too late for a call
}

func (c *client) BeginCall() bool {
	if !c.closed {
		c.calls.Add(1)
	}
	return !c.closed
}

func (c *client) EndCall() { c.calls.Done() }

func (c *client) Background(bound time.Duration, fn func(ctx context.Context)) {
	c.calls.Go(func() {
		ctx, cancel := context.WithTimeout(context.Background(), bound)
		defer cancel()
		fn(ctx)
	})
}

func (c *client) Retry(ctx context.Context, quit <-chan struct{}, op func(ctx context.Context) error) error {
	for {
		err := op(ctx)
		if err == nil || ctx.Err() != nil {
			return err
		}
		select {
		case <-quit:
			return err
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// fixture is Queues with a fake server and a fake client.
type fixture struct {
	*Queues
	server *server
	client *client
	end    context.CancelFunc
}

func newFixture() fixture {
	life, end := context.WithCancel(context.Background())
	s, c := &server{rows: map[string]int64{}}, &client{}
	l := New(Config{
		Store: s, BeginCall: c.BeginCall, EndCall: c.EndCall, Background: c.Background, Retry: c.Retry, Client: "client", Life: life, Closing: make(chan struct{}),
		Logger: slog.New(slog.DiscardHandler), Needed: func() bool { return false },
		Report: func(context.Context, observe.ResultEvent) {},
	})
	return fixture{l, s, c, end}
}

// stop stops the Queues when all background work has ended.
func (f fixture) stop() {
	f.client.calls.Wait()
	f.Stop(context.Background())
	f.end()
}

func (f fixture) push() *Entry { return f.Push(&leasetable.Request{Name: "n"}, time.Now()) }

// pushAll is push for a caller that waits for two names.
func (f fixture) pushAll() *Entry {
	return f.Push(&leasetable.Request{Name: "m and n", All: []string{"m", "n"}}, time.Now())
}

// draw draws a ticket for the entry.
func (f fixture) draw(t *testing.T, e *Entry) {
	t.Helper()
	if _, err := e.DrawTicket(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// ticket returns the ticket of the entry's queue, or its entry in the overflow list.
func (f fixture) ticket(e *Entry) leasetable.Ticket {
	f.mu.Lock()
	defer f.mu.Unlock()
	return e.queue.ticket()
}

// pass waits for d of the bubble's time.
func pass(d time.Duration) { <-time.After(d) }
