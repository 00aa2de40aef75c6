package faultproxy

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// link is one client's connection, and the one to the server that belongs to it.
type link struct {
	proxy  *Proxy
	ctx    context.Context // done when the link is closed
	cancel context.CancelFunc
	client *net.TCPConn

	mu     sync.Mutex
	server *net.TCPConn // nil until dialed
	closed bool
}

// chunk is what was read at once. With end set it is the last, and nothing was read.
type chunk struct {
	data []byte
	due  time.Time
	end  error
}

// run lives as long as the link.
func (l *link) run() {
	defer l.proxy.running.Done()
	defer l.close(false)
	if !l.awaitPassage(time.Time{}) || !l.dial() {
		return
	}
	var ways sync.WaitGroup
	ways.Go(func() { l.forward(l.client, l.server, &l.proxy.toServer, nil) })
	ways.Go(func() { l.forward(l.server, l.client, &l.proxy.toClient, new(bool)) })
	ways.Wait()
}

// dial connects to the server. It reports false when that can't be had, or the link was closed meanwhile.
func (l *link) dial() bool {
	var dialer net.Dialer
	conn, err := dialer.DialContext(l.ctx, "tcp", l.proxy.target)
	if err != nil {
		l.reset()
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		conn.Close()
		return false
	}
	l.server = conn.(*net.TCPConn)
	return true
}

// forward carries bytes one way until that way ends. lost is nil for requests; for replies it remembers that some
// were dropped.
func (l *link) forward(from, to *net.TCPConn, count *atomic.Int64, lost *bool) {
	chunks := make(chan chunk, 64)
	var reader sync.WaitGroup
	reader.Go(func() { l.read(from, chunks) })
	defer reader.Wait()
	for {
		select {
		case c := <-chunks:
			if !l.awaitPassage(c.due) || !l.deliver(c, to, count, lost) {
				return
			}
		case <-l.ctx.Done():
			return
		}
	}
}

// read hands on what arrives. It knows of no fault but the delay, so that both ends can fill the network's buffers
// while it is cut.
func (l *link) read(from *net.TCPConn, chunks chan<- chunk) {
	for {
		buffer := make([]byte, 32<<10)
		n, err := from.Read(buffer)
		faults, _ := l.proxy.now()
		due := time.Now().Add(faults.delay)
		if n > 0 && !l.enqueue(chunks, chunk{data: buffer[:n], due: due}) {
			return
		}
		if err != nil {
			l.enqueue(chunks, chunk{end: err, due: due})
			return
		}
	}
}

func (l *link) enqueue(chunks chan<- chunk, c chunk) bool {
	select {
	case chunks <- c:
		return true
	case <-l.ctx.Done():
		return false
	}
}

// deliver writes a chunk, or passes on how the other side ended. It reports whether this way goes on.
func (l *link) deliver(c chunk, to *net.TCPConn, count *atomic.Int64, lost *bool) bool {
	switch {
	case errors.Is(c.end, io.EOF):
		_ = to.CloseWrite() // fails only if the other end is gone too
		return false
	case c.end != nil:
		l.reset()
		return false
	}
	if lost != nil {
		faults, _ := l.proxy.now()
		*lost = *lost || faults.dropReplies
		if *lost {
			return true
		}
	}
	n, err := to.Write(c.data)
	count.Add(int64(n))
	if err != nil {
		l.reset()
	}
	return err == nil
}

// awaitPassage returns when the time is due and the network isn't cut. It reports false when the link was closed.
func (l *link) awaitPassage(due time.Time) bool {
	if wait := time.Until(due); wait > 0 {
		timer := time.NewTimer(wait)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-l.ctx.Done():
			return false
		}
	}
	for {
		faults, changed := l.proxy.now()
		if !faults.cut {
			return l.ctx.Err() == nil
		}
		select {
		case <-changed:
		case <-l.ctx.Done():
			return false
		}
	}
}

// reset breaks the link off: both ends get an RST.
func (l *link) reset() { l.close(true) }

func (l *link) close(hard bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return
	}
	l.closed = true
	l.cancel()
	for _, conn := range []*net.TCPConn{l.client, l.server} {
		if conn == nil {
			continue
		}
		if hard {
			_ = conn.SetLinger(0) // without it the end is told politely, which does as well
		}
		conn.Close()
	}
	l.proxy.mu.Lock()
	defer l.proxy.mu.Unlock()
	delete(l.proxy.links, l)
}
