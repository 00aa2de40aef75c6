//go:build linux

package main

import (
	"context"
	"net"
	"os"
	"runtime"
	"sync"

	"golang.org/x/sys/unix"
)

// hub dials from the hub's namespace. A socket belongs to the namespace of the thread that makes it,
// so there is a thread for that. The thread lasts as long as the program, because the kernel counts
// its end as the end of the parent of the processes that it has started.
type hub struct {
	start sync.Once
	calls chan dialCall
}

type dialCall struct {
	ctx              context.Context //nolint:containedctx // of the call
	network, address string
	answer           chan<- dialAnswer
}

type dialAnswer struct {
	conn net.Conn
	err  error
}

// dial connects to an address, one call after the other.
func (c *cluster) dial(ctx context.Context, network, address string) (net.Conn, error) {
	c.hub.start.Do(func() {
		c.hub.calls = make(chan dialCall)
		go c.runHub()
	})
	answer := make(chan dialAnswer, 1)
	c.hub.calls <- dialCall{ctx, network, address, answer}
	got := <-answer
	return got.conn, got.err
}

func (c *cluster) runHub() {
	runtime.LockOSThread()
	file, err := os.Open("/run/netns/" + c.tag)
	if err == nil {
		err = unix.Setns(int(file.Fd()), unix.CLONE_NEWNET)
		_ = file.Close()
	}
	for call := range c.hub.calls {
		if err != nil {
			call.answer <- dialAnswer{err: err}
			continue
		}
		var d net.Dialer
		conn, err := d.DialContext(call.ctx, call.network, call.address)
		call.answer <- dialAnswer{conn, err}
	}
}
