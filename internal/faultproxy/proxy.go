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
	ctx      context.Context // done when the proxy closes
	running  sync.WaitGroup  // every goroutine of the proxy

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
	ctx, cancel := context.WithCancel(context.Background())
	p := &Proxy{
		tb:       tb,
		target:   target,
		listener: listener,
		ctx:      ctx,
		changed:  make(chan struct{}),
		links:    make(map[*link]struct{}),
	}
	p.running.Go(p.runAccept)
	tb.Cleanup(func() {
		cancel()
		listener.Close()
		p.Sever()
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

func (p *Proxy) runAccept() {
	for {
		conn, err := p.listener.Accept()
		if err != nil {
			return // closed
		}
		l := &link{proxy: p, client: conn.(*net.TCPConn)}
		l.ctx, l.cancel = context.WithCancel(p.ctx)
		p.mu.Lock()
		p.accepted++
		refuse := p.faults.refuse
		l.frozen.Store(p.faults.freeze)
		if p.decide != nil {
			l.dialog = newDialog(p.decide)
		}
		p.links[l] = struct{}{}
		p.mu.Unlock()
		if refuse || p.ctx.Err() != nil {
			l.reset()
			continue
		}
		p.running.Go(l.run)
	}
}

// Stats are counters since New.
type Stats struct {
	Accepted int   // connections, including refused ones
	Open     int   // current connections
	ToServer int64 // bytes that reached the server
}

// Stats returns the counters.
func (p *Proxy) Stats() Stats {
	p.mu.Lock()
	defer p.mu.Unlock()
	return Stats{Accepted: p.accepted, Open: len(p.links), ToServer: p.toServer.Load()}
}
