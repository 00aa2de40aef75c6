package faultproxy

import (
	"context"
	"net"
	"net/url"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// Proxy forwards connections to a server. All methods may be called concurrently.
type Proxy struct {
	tb       testing.TB
	target   string
	listener net.Listener
	running  sync.WaitGroup // every goroutine of the proxy

	toServer atomic.Int64

	mu       sync.Mutex
	accepted int
	faults   faults
	decide   func(Request) Fate // nil: requests are not read
	changed  chan struct{}      // closed and replaced whenever faults change
	links    map[*link]struct{}
}

// faults are the current faults.
type faults struct {
	cut         bool
	dropReplies bool
	holdReplies bool
	refuse      bool
	freeze      bool
	delay       time.Duration
}

// New starts a proxy for target, a host and a port. Cleanup closes it with all its connections.
func New(tb testing.TB, target string) *Proxy {
	tb.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatalf("faultproxy: %v", err)
	}
	p := &Proxy{tb: tb, target: target, listener: listener, changed: make(chan struct{}), links: make(map[*link]struct{})}
	p.running.Go(p.runAccept)
	tb.Cleanup(func() {
		listener.Close()
		p.running.Wait()
	})
	return p
}

// Addr returns the host and port that clients connect to.
func (p *Proxy) Addr() string { return p.listener.Addr().String() }

// URL returns the database's URL with the address of the proxy.
func (p *Proxy) URL(databaseURL string) string {
	p.tb.Helper()
	u, err := url.Parse(databaseURL)
	if err != nil || u.Host == "" {
		p.tb.Fatal("faultproxy: the database's address must be a URL with a host")
	}
	u.Host = p.Addr()
	return u.String()
}

// runAccept ends when the listener is closed, and then severs all links, because no further one follows.
func (p *Proxy) runAccept() {
	defer p.Sever()
	for {
		conn, err := p.listener.Accept()
		if err != nil {
			return
		}
		l := &link{proxy: p, client: conn.(*net.TCPConn)}
		l.ctx, l.cancel = context.WithCancel(context.Background())
		p.mu.Lock()
		p.accepted++
		refuse := p.faults.refuse
		l.frozen.Store(p.faults.freeze)
		if p.decide != nil {
			l.dialog = &dialog{decide: p.decide, prepared: make(map[string]string)}
		}
		p.links[l] = struct{}{}
		p.mu.Unlock()
		if refuse {
			l.close(true)
			continue
		}
		p.running.Go(l.run)
	}
}

// Stats are counters since New.
type Stats struct {
	Accepted int   // connections, including refused ones
	Open     int   // current connections
	ToServer int64 // bytes that were sent to the server
}

// Stats returns the counters.
func (p *Proxy) Stats() Stats {
	p.mu.Lock()
	defer p.mu.Unlock()
	return Stats{Accepted: p.accepted, Open: len(p.links), ToServer: p.toServer.Load()}
}
