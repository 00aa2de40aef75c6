package faultproxy

import "time"

// Cut makes the network swallow everything, in both directions. Connections stay open, and new ones hang.
func (p *Proxy) Cut() { p.change(func(f *faults) { f.cut = true }) }

// Heal ends Cut and DropReplies.
func (p *Proxy) Heal() { p.change(func(f *faults) { f.cut, f.dropReplies = false, false }) }

// DropReplies lets requests through and loses what the server answers.
func (p *Proxy) DropReplies() { p.change(func(f *faults) { f.dropReplies = true }) }

// Refuse makes new connections end at once, or lets them through again.
func (p *Proxy) Refuse(refuse bool) { p.change(func(f *faults) { f.refuse = refuse }) }

// Delay makes everything arrive d later, in each direction; zero ends that. What is on its way already keeps its time.
func (p *Proxy) Delay(d time.Duration) { p.change(func(f *faults) { f.delay = d }) }

// Sever resets all current connections. It returns when both ends have been told.
func (p *Proxy) Sever() {
	p.mu.Lock()
	var links []*link
	for l := range p.links {
		links = append(links, l)
	}
	p.mu.Unlock()
	for _, l := range links {
		l.reset()
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
