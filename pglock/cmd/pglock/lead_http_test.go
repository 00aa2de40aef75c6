//go:build unix

package main

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/pglock/pglock-go/internal/locktest"
	"github.com/pglock/pglock-go/internal/pgtest"
)

// listens returns the address at which a call listens.
func (p *call) listens() (address string) {
	p.t.Helper()
	pgtest.Eventually(p.t, "it listens", func() bool {
		_, after, found := strings.Cut(read(p.t, p.stderr.Name()), "listening on ")
		address, _, _ = strings.Cut(after, "\n")
		return found
	})
	return address
}

// TestTheProbeIsAnsweredBesideOpenConnections: peers that send a request without the end of its
// body keep neither their connections nor all files of a leader, and open new ones as soon as they
// are closed.
func TestTheProbeIsAnsweredBesideOpenConnections(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	p := c.sh("ulimit -n 128 && exec pglock lead --http 127.0.0.1:0 n")
	address := p.listens()
	ctx, stop := context.WithCancel(t.Context())
	const peers = 200
	done := make(chan struct{})
	for i := range peers {
		request := []string{
			"GET /self HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nt", "POST /self HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nt",
			"POST /x HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nt", "GET /self HTTP/1.1\r\nHost: x\r\n\r\n",
		}[i%4]
		go func() {
			defer func() { done <- struct{}{} }()
			for ctx.Err() == nil {
				conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
				if err != nil {
					continue
				}
				end := context.AfterFunc(ctx, func() { _ = conn.Close() })
				_, _ = io.WriteString(conn, request)
				_, _ = io.Copy(io.Discard, conn) // until the server ends it
				end()
				_ = conn.Close()
				select { // not too fast for a small machine
				case <-time.After(time.Second):
				case <-ctx.Done():
				}
			}
		}()
	}
	defer func() {
		stop()
		for range peers {
			locktest.Receive(t, done)
		}
	}()
	for range 20 {
		pgtest.Eventually(t, "the probe", func() bool {
			probe := http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
			r, err := probe.Get("http://" + address + "/self")
			if err != nil {
				return false
			}
			_ = r.Body.Close()
			return r.StatusCode == http.StatusOK
		})
	}
}

// TestAnOpenBodyEnds: a body that does not arrive ends its connection, also without others.
func TestAnOpenBodyEnds(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	conn, err := net.Dial("tcp", c.start("lead", "--http", "127.0.0.1:0", "n").listens())
	locktest.OK(t, err)
	defer func() { _ = conn.Close() }()
	_, err = io.WriteString(conn, "POST /self HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nt")
	locktest.OK(t, err)
	locktest.OK(t, conn.SetReadDeadline(time.Now().Add(pgtest.Patience)))
	_, err = io.Copy(io.Discard, conn) // until the server ends it
	locktest.OK(t, err)
}

// TestTheOldestConnectionIsClosed when there are too many, and not one that was used since.
func TestTheOldestConnectionIsClosed(t *testing.T) {
	t.Parallel()
	var r recent
	var mine, theirs []net.Conn
	for range maxConns + 2 {
		a, b := net.Pipe()
		mine, theirs = append(mine, a), append(theirs, b)
	}
	defer func() {
		for i := range mine {
			_, _ = mine[i].Close(), theirs[i].Close()
		}
	}()
	for i := range maxConns {
		r.track(mine[i], http.StateNew)
	}
	r.track(mine[0], http.StateActive)
	r.track(mine[1], http.StateClosed) // makes room for one
	r.track(mine[maxConns], http.StateNew)
	r.track(mine[maxConns+1], http.StateNew)
	for i, peer := range theirs {
		_ = peer.SetReadDeadline(time.Unix(0, 0)) // fails if it is closed
		_, err := peer.Read(make([]byte, 1))
		if closed := errors.Is(err, io.EOF); closed != (i == 2) {
			t.Errorf("connection %d: %v", i, err)
		}
	}
}
