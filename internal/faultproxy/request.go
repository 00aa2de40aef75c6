package faultproxy

import (
	"bytes"
	"encoding/binary"
	"iter"
	"strings"
	"sync"
)

// Request is what a client of PostgreSQL sends before it waits for an answer: a simple query, or
// messages that end with Sync. Those that execute nothing are no requests.
type Request struct {
	SQL           string // several statements are joined by newlines
	InTransaction bool   // the server was in a transaction block before
}

// Fate is what happens to a request.
type Fate int

// The fates of requests.
const (
	Pass      Fate = iota
	LoseReply      // the server executes it, and the connection is reset instead of the reply
	Twice          // the server gets it twice in a row; the client gets the first reply
	Again          // the server gets it again after the next request; the client gets the first reply
)

// OnRequest makes decide choose the fate of each request of PostgreSQL's protocol, on connections
// that are made from now on. It understands connections without TLS. decide may be called
// concurrently. Other faults apply as well.
func (p *Proxy) OnRequest(decide func(Request) Fate) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.decide = decide
}

// dialog follows the messages of one connection in both directions.
type dialog struct {
	decide func(Request) Fate

	// Of the direction to the server.
	in       []byte // the beginning of an incomplete message
	started  bool   // the startup message has passed
	raw      bool   // not a session: a request to cancel
	group    []byte // the complete messages since the last Sync
	executed []string
	prepared map[string]string // name → SQL
	late     []byte            // to be sent again after the next request

	// Of the direction to the client.
	out   []byte
	ready bool // the login has ended

	mu      sync.Mutex
	pending []Fate // of each group that the server has not answered, oldest first; Twice is a copy
	block   bool   // in a transaction block
}

// toServer returns the bytes to be sent in place of data. The first data is a whole startup message,
// because clients write it at once.
func (d *dialog) toServer(data []byte) (send []byte) {
	if !d.started {
		const protocol3 = 3 << 16
		d.started = true
		d.raw = len(data) < 8 || binary.BigEndian.Uint32(data[4:]) != protocol3
		return data
	}
	if d.raw {
		return data
	}
	d.in = append(d.in, data...)
	for message := range messages(&d.in) {
		send = append(send, d.request(message)...)
	}
	return send
}

// messages takes the complete messages from the beginning of a buffer.
func messages(buffer *[]byte) iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		for b := *buffer; len(b) >= 5; b = *buffer {
			n := 1 + int(binary.BigEndian.Uint32(b[1:]))
			if len(b) < n {
				return
			}
			*buffer = b[n:]
			if !yield(bytes.Clone(b[:n])) {
				return
			}
		}
	}
}

// request handles one message of the client.
func (d *dialog) request(message []byte) (send []byte) {
	kind, body := message[0], message[5:]
	switch kind {
	case 'p', 'X': // password, end
		return message
	case 'P':
		name, rest := cString(body)
		d.prepared[name], _ = cString(rest)
	case 'B':
		_, rest := cString(body)
		name, _ := cString(rest)
		d.executed = append(d.executed, d.prepared[name])
	case 'Q':
		sql, _ := cString(body)
		d.executed = append(d.executed, sql)
	}
	d.group = append(d.group, message...)
	if kind != 'Q' && kind != 'S' {
		return nil
	}
	group, sql := d.group, strings.Join(d.executed, "\n")
	d.group, d.executed = nil, nil
	d.mu.Lock()
	defer d.mu.Unlock()
	fate, first := Pass, Pass
	if sql != "" {
		fate = d.decide(Request{sql, d.block})
	}
	if fate == LoseReply {
		first = LoseReply
	}
	send = bytes.Clone(group)
	d.pending = append(d.pending, first)
	if fate == Twice {
		send, d.pending = append(send, group...), append(d.pending, Twice)
	}
	if d.late != nil && !d.block {
		send, d.pending, d.late = append(send, d.late...), append(d.pending, Twice), nil
	}
	if fate == Again {
		d.late = group
	}
	return send
}

// toClient returns the bytes to be sent in place of data, and whether the connection ends now.
func (d *dialog) toClient(data []byte) (send []byte, reset bool) {
	if d.raw {
		return data, false
	}
	d.out = append(d.out, data...)
	for message := range messages(&d.out) {
		keep, end := d.reply(message)
		if end {
			return send, true
		}
		if keep {
			send = append(send, message...)
		}
	}
	return send, false
}

// reply handles one message of the server.
func (d *dialog) reply(message []byte) (keep, reset bool) {
	kind := message[0]
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.ready { // the login
		d.ready = kind == 'Z'
		return true, false
	}
	if kind == 'A' || len(d.pending) == 0 { // a notification, or the server ends the connection
		return true, false
	}
	fate := d.pending[0]
	if kind == 'Z' {
		d.pending = d.pending[1:]
		d.block = len(message) > 5 && message[5] != 'I'
	}
	return fate == Pass, fate == LoseReply && kind == 'Z'
}

// cString splits b after its first NUL.
func cString(b []byte) (s string, rest []byte) {
	head, rest, _ := bytes.Cut(b, []byte{0})
	return string(head), rest
}
