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

// link is a client's connection with its connection to the server.
type link struct {
	proxy  *Proxy
	ctx    context.Context // done when the link is closed
	cancel context.CancelFunc
	client *net.TCPConn
	frozen atomic.Bool // nothing passes any more
	dialog *dialog     // nil: requests are not read

	mu     sync.Mutex
	server *net.TCPConn // nil until dialed
	closed bool
}

// chunk is the data of one read. If end is set, it is the last one and has no data.
type chunk struct {
	data []byte
	due  time.Time
	end  error
}

// run forwards in both directions until the link is closed.
func (l *link) run() {
	defer l.close(false)
	if !l.awaitPassage(time.Time{}) || !l.dial() {
		return
	}
	var ways sync.WaitGroup
	ways.Go(func() { l.forward(l.client, l.server, nil) })
	ways.Go(func() { l.forward(l.server, l.client, new(bool)) })
	ways.Wait()
}

// dial connects to the server. It returns false if that fails or the link was closed meanwhile.
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

// forward copies bytes in one direction until that direction ends. lost is nil for requests. For
// replies it is set after the first one that is dropped.
func (l *link) forward(from, to *net.TCPConn, lost *bool) {
	chunks := make(chan chunk, 64)
	var reader sync.WaitGroup
	reader.Go(func() { l.read(from, chunks) })
	defer reader.Wait()
	for {
		select { // a closed link may drop what is still in chunks
		case c := <-chunks:
			if !l.awaitPassage(c.due) || !l.deliver(c, to, lost) {
				return
			}
		case <-l.ctx.Done():
			return
		}
	}
}

// read passes data to forward. Of the faults it applies only the delay, so that both ends can fill the
// network's buffers during a cut.
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

// deliver writes a chunk or the end of the stream. It reports whether the direction goes on.
func (l *link) deliver(c chunk, to *net.TCPConn, lost *bool) bool {
	switch {
	case errors.Is(c.end, io.EOF):
		_ = to.CloseWrite() // fails only if the other end is closed too
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
	broken := false
	if l.dialog != nil && lost == nil {
		c.data = l.dialog.toServer(c.data)
	} else if l.dialog != nil {
		c.data, broken = l.dialog.toClient(c.data)
	}
	n, err := to.Write(c.data)
	if lost == nil {
		l.proxy.toServer.Add(int64(n))
	}
	if err != nil || broken {
		l.reset()
	}
	return err == nil && !broken
}

// awaitPassage returns true when the time has come and no fault holds the data back. It returns
// false when the link is closed.
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
		if !faults.cut && !l.frozen.Load() {
			return l.ctx.Err() == nil
		}
		select {
		case <-changed:
		case <-l.ctx.Done():
			return false
		}
	}
}

// reset closes the link with an RST to both ends.
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
			_ = conn.SetLinger(0) // if that fails, the end gets a FIN
		}
		conn.Close()
	}
	l.proxy.mu.Lock()
	defer l.proxy.mu.Unlock()
	delete(l.proxy.links, l)
}
