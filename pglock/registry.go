package pglock

import (
	"cmp"
	"slices"
	"sync"

	"github.com/pglock/pglock-go/fencing"
)

// maxUnclaimed is the number of tokens that a client remembers from notifications that arrived
// before its grant.
const maxUnclaimed = 16

// registry has the leases of a client that Close releases.
type registry struct {
	mu     sync.Mutex // guards the fields below
	closed bool       // no more leases are added
	leases map[*Lease]struct{}
	newest map[string]*Lease // of leases, by name

	unclaimed     [maxUnclaimed]fencing.Token // a ring, filled by claim
	lastUnclaimed int
}

// add adds a lease, and reports false if the client was closed since the call began. notified
// reports that a notification with its token has arrived before it.
func (r *registry) add(l *Lease) (added, notified bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return false, false
	}
	r.leases[l] = struct{}{}
	for i := range l.count() {
		r.newest[l.nameAt(i)] = l
	}
	return true, slices.Contains(r.unclaimed[:], l.fence.Token)
}

func (r *registry) remove(l *Lease) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.leases, l)
	for i := range l.count() {
		if name := l.nameAt(i); r.newest[name] == l {
			delete(r.newest, name)
		}
	}
}

// newestOf returns the newest lease of that name whose end this client has not seen, or nil.
func (r *registry) newestOf(name string) *Lease {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.newest[name]
}

// holds reports whether the newest lease of that name has that token.
func (r *registry) holds(name string, token fencing.Token) bool {
	l := r.newestOf(name)
	return l != nil && l.fence.Token == token
}

// all returns the leases, oldest grants first, so that a simulation that runs again does the same.
func (r *registry) all() []*Lease {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := make([]*Lease, 0, len(r.leases))
	for l := range r.leases {
		all = append(all, l)
	}
	slices.SortFunc(all, func(a, b *Lease) int { return cmp.Compare(a.fence.Token, b.fence.Token) })
	return all
}

// close refuses further leases and returns those that Close releases.
func (r *registry) close() []*Lease {
	r.mu.Lock()
	r.closed = true
	r.mu.Unlock()
	return r.all()
}

// withToken returns the leases of the grant with that token, of which there can be several after
// Adopt.
func (r *registry) withToken(token fencing.Token) []*Lease {
	return slices.DeleteFunc(r.all(), func(l *Lease) bool { return l.fence.Token != token })
}

// claim is withToken for a notification. Because others can read the token at once, the answer to
// the acquire may still be on its way, so the newest tokens without a lease are remembered for add.
func (r *registry) claim(token fencing.Token) (all []*Lease) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for l := range r.leases {
		if l.fence.Token == token {
			all = append(all, l)
		}
	}
	if len(all) == 0 {
		r.unclaimed[r.lastUnclaimed%maxUnclaimed] = token
		r.lastUnclaimed++
	}
	return all
}
