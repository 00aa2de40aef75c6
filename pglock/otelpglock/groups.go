package otelpglock

import "sync"

// overflowGroup is the group of names that are beyond the limit of groups.
const overflowGroup = "_OTHER_"

// groups maps lock names to a bounded number of groups. It is safe for concurrent use.
type groups struct {
	of  func(name string) string
	max int

	mu   sync.RWMutex // guards the field below
	seen map[string]struct{}
}

// get returns the group of a name. The first groups that are seen keep their names.
func (g *groups) get(name string) string {
	group := g.of(name)
	g.mu.RLock()
	_, known := g.seen[group]
	full := len(g.seen) >= g.max
	g.mu.RUnlock()
	if known {
		return group
	}
	if full {
		return overflowGroup
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if _, known := g.seen[group]; !known && len(g.seen) >= g.max { // since RUnlock
		return overflowGroup
	}
	g.seen[group] = struct{}{}
	return group
}
