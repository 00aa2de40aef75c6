package faultproxy

import (
	"maps"
	"slices"
	"time"
)

// Cut stops all data in both directions. Connections stay open, and new ones hang.
func (p *Proxy) Cut() { p.change(func(f *faults) { f.cut = true }) }

// Heal ends Cut, DropReplies and HoldReplies.
func (p *Proxy) Heal() {
	p.change(func(f *faults) { f.cut, f.dropReplies, f.holdReplies = false, false, false })
}

// HoldReplies forwards requests and withholds replies.
func (p *Proxy) HoldReplies() { p.change(func(f *faults) { f.holdReplies = true }) }

// DropReplies forwards requests and discards replies.
func (p *Proxy) DropReplies() { p.change(func(f *faults) { f.dropReplies = true }) }

// Freeze makes the address a black hole, as if the host behind it were gone, or ends that.
func (p *Proxy) Freeze(freeze bool) {
	p.change(func(f *faults) {
		f.freeze = freeze
		for l := range p.links {
			l.frozen.Store(true)
		}
	})
}

// Refuse closes new connections at once, or ends that.
func (p *Proxy) Refuse(refuse bool) { p.change(func(f *faults) { f.refuse = refuse }) }

// Delay makes everything arrive d later, in each direction. Zero ends that. It does not change the
// time of data that is already on its way.
func (p *Proxy) Delay(d time.Duration) { p.change(func(f *faults) { f.delay = d }) }

// Sever resets all current connections. It returns when both ends are reset.
func (p *Proxy) Sever() {
	p.mu.Lock()
	links := slices.Collect(maps.Keys(p.links))
	p.mu.Unlock()
	for _, l := range links {
		l.close(true)
	}
}

func (p *Proxy) change(apply func(*faults)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	apply(&p.faults)
	close(p.changed)
	p.changed = make(chan struct{})
}

// now returns the faults and a channel that is closed when they change.
func (p *Proxy) now() (faults, <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.faults, p.changed
}
