package memory

import (
	"maps"
	"slices"
	"time"

	"github.com/pglock/pglock-go/fencing"
	"github.com/pglock/pglock-go/leasetable"
)

// Grant is a grant that lives.
type Grant struct {
	Name    string
	Size    int // the weights of the grants of the name are no more
	Token   fencing.Token
	Weight  int
	Holder  string
	Request string
	Asked   bool // its holder is asked to release it
	Expires time.Time
}

// Ticket is a valid ticket.
type Ticket struct {
	Number  int64
	Client  string
	Weight  int
	Expires time.Time
}

// Tickets returns the queue of a name.
func (s *Server) Tickets(name string) (queue []Ticket) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if l := s.names[name]; l != nil && len(l.waiters) > 0 {
		for _, w := range l.queue(time.Now(), leasetable.NoTicket) {
			queue = append(queue, Ticket{w.ticket, w.client, w.weight, w.expires})
		}
	}
	return queue
}

// Touched returns the names that statements were about since the last call. The grants and tickets
// of others have not changed, but for the passing of time.
func (s *Server) Touched(names []string) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, l := range s.touched {
		l.touched = false
		names = append(names, l.name)
	}
	s.touched = s.touched[:0]
	return names
}

// Names returns all names, sorted. The caller must not change it.
func (s *Server) Names() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.order
}

// Mark returns the high-water mark of a resource.
func (s *Server) Mark(resource string) fencing.Token {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.marks[resource]
}

// NestedWaits returns the holders whose calls wait while they hold locks.
func (s *Server) NestedWaits() (holders []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, w := range s.nested {
		if w.expires.After(time.Now()) {
			holders = append(holders, w.holder)
		}
	}
	return holders
}

// Grants calls visit with the grants that live, in the order of their names.
func (s *Server) Grants(visit func(g Grant)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	for _, name := range s.order {
		s.names[name].visit(now, visit)
	}
}

// GrantsOf is Grants of one name. It returns how many permits the name has, or 0 if it has no row.
func (s *Server) GrantsOf(name string, visit func(g Grant)) (size int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.names[name]
	if l == nil || !l.exists {
		return 0
	}
	l.visit(time.Now(), visit)
	return l.size()
}

func (l *lock) visit(now time.Time, visit func(g Grant)) {
	for _, g := range l.grants {
		if g.expires.After(now) {
			visit(Grant{l.name, l.size(), g.token, g.weight, g.holder, g.request, g.asked != nil, g.expires})
		}
	}
}

// Crash empties what is not logged, the queues and the nested waits, and ends the sessions that
// listen.
func (s *Server) Crash() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.emptyUnlogged()
	s.endSessions()
}

func (s *Server) endSessions() {
	for _, l := range slices.Clone(s.sessions) {
		l.end(errDown)
	}
}

func (s *Server) emptyUnlogged() {
	s.nested = nil
	for _, name := range s.order {
		s.lock(name).waiters = nil
	}
}

// Copy returns a function that makes the server what it is now, as the promotion of a standby does
// that has received the log up to here: without what is not logged, and with tokens above all that
// were ever drawn.
func (s *Server) Copy() (promote func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	names, marks, keys, jobs := copyNames(s.names), maps.Clone(s.marks), copyKeys(s.keys), maps.Clone(s.jobs)
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.names, s.marks, s.keys, s.jobs, s.order, s.touched = names, marks, keys, jobs, slices.Sorted(maps.Keys(names)), nil
		s.emptyUnlogged()
		s.sequence += 1 << 32 // the timeline
	}
}

func copyNames(names map[string]*lock) map[string]*lock {
	all := make(map[string]*lock, len(names))
	for name, l := range names {
		c := *l
		c.touched = false
		c.revoked = maps.Clone(l.revoked)
		c.grants = nil
		for _, g := range l.grants {
			copied := *g
			c.grants = append(c.grants, &copied)
		}
		all[name] = &c
	}
	return all
}

func copyKeys(keys map[string]*key) map[string]*key {
	all := make(map[string]*key, len(keys))
	for name, k := range keys {
		copied := *k
		all[name] = &copied
	}
	return all
}
