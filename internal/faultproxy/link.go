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

// chunk is what one read returned.
type chunk struct {
	data []byte
	end  error
	due  time.Time
}

// run forwards in both directions until the link is closed.
func (l *link) run() {
	defer l.close(false)
	if !l.awaitPassage(time.Time{}, false) {
		return
	}
	var dialer net.Dialer
	conn, err := dialer.DialContext(l.ctx, "tcp", l.proxy.target)
	if err != nil {
		l.close(true)
		return
	}
	l.mu.Lock()
	if l.closed { // while it dialed, so close did not see the connection
		l.mu.Unlock()
		conn.Close()
		return
	}
	l.server = conn.(*net.TCPConn)
	l.mu.Unlock()
	var ways sync.WaitGroup
	ways.Go(func() { l.forward(l.client, l.server, nil) })
	ways.Go(func() { l.forward(l.server, l.client, new(bool)) })
	ways.Wait()
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
			if !l.awaitPassage(c.due, lost != nil) || !l.deliver(c, to, lost) {
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
		select { // the reader of chunks leaves when the link is closed
		case chunks <- chunk{buffer[:n], err, time.Now().Add(faults.delay)}:
		case <-l.ctx.Done():
			return
		}
		if err != nil {
			return
		}
	}
}

// deliver writes a chunk. It reports whether the direction continues.
func (l *link) deliver(c chunk, to *net.TCPConn, lost *bool) bool {
	broken := false
	if lost == nil {
		if l.dialog != nil {
			c.data = l.dialog.toServer(c.data)
		}
		l.proxy.toServer.Add(int64(len(c.data)))
	} else {
		faults, _ := l.proxy.now()
		*lost = *lost || faults.dropReplies
		if *lost {
			c.data = nil
		} else if l.dialog != nil {
			c.data, broken = l.dialog.toClient(c.data)
		}
	}
	_, err := to.Write(c.data)
	if errors.Is(c.end, io.EOF) && err == nil && !broken {
		_ = to.CloseWrite() // fails only if the other end is closed too
		return false
	}
	if err != nil || broken || c.end != nil {
		l.close(true)
		return false
	}
	return true
}

// awaitPassage returns true when the time has come and no fault holds the data, a reply or not, back. It
// returns false when the link is closed.
func (l *link) awaitPassage(due time.Time, reply bool) bool {
	if wait := time.Until(due); wait > 0 {
		select { // a link that is closed meanwhile is seen below
		case <-time.After(wait):
		case <-l.ctx.Done():
		}
	}
	for l.ctx.Err() == nil {
		faults, changed := l.proxy.now()
		if held := faults.cut || reply && faults.holdReplies; !held && !l.frozen.Load() {
			return true
		}
		select { // as above
		case <-changed:
		case <-l.ctx.Done():
		}
	}
	return false
}

// close closes the link, a hard one with an RST to both ends.
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
