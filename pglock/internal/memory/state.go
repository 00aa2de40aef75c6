package memory

import (
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/pglock/pglock-go/fencing"
)

// Row is what a server has of a name.
type Row struct {
	Name    string
	Size    int // the weights of grants that live at the same time are no more
	Token   fencing.Token
	Grants  []Grant // that live
	Waiters []Waiter
}

// Grant is a grant that lives.
type Grant struct {
	Token   fencing.Token
	Weight  int
	Whole   bool // nobody else can have a part
	Request string
	Holder  string
	Expires time.Time
}

// Waiter has a ticket of the queue that is valid.
type Waiter struct {
	Client string
	Ticket int64
}

// Rows returns what the server has now, in the order of the names.
func (s *Server) Rows() (rows []Row) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	for name, l := range s.names {
		if !l.exists {
			continue
		}
		r := Row{Name: name, Size: l.size(), Token: l.token}
		for _, g := range l.live(now) {
			r.Grants = append(r.Grants, Grant{g.token, g.weight, g.whole, g.request, g.holder, g.expires})
		}
		for _, w := range l.waiters {
			if w.ticket > l.ticket && w.expires.After(now) {
				r.Waiters = append(r.Waiters, Waiter{w.client, w.ticket})
			}
		}
		rows = append(rows, r)
	}
	slices.SortFunc(rows, func(a, b Row) int { return strings.Compare(a.Name, b.Name) })
	return rows
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
	for _, l := range s.names {
		l.waiters = nil
	}
}

// Copy returns a function that makes the server what it is now, as the promotion of a standby does
// that has received the log up to here: without what is not logged, and with tokens above all that
// were ever drawn.
func (s *Server) Copy() (promote func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	names, marks, keys := copyNames(s.names), maps.Clone(s.marks), copyKeys(s.keys)
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.names, s.marks, s.keys = names, marks, keys
		s.emptyUnlogged()
		s.sequence += 1 << 32 // the timeline
	}
}

func copyNames(names map[string]*lock) map[string]*lock {
	all := make(map[string]*lock, len(names))
	for name, l := range names {
		c := *l
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
