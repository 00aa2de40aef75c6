package faultproxy_test

import (
	"bufio"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/pglock/pglock-go/internal/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// echoServer answers each line with the same line, and remembers what it got.
type echoServer struct {
	addr string

	mu  sync.Mutex
	got []string
}

func newEchoServer(t *testing.T) *echoServer {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &echoServer{addr: listener.Addr().String()}
	var running sync.WaitGroup
	running.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			running.Go(func() { s.serve(conn) })
		}
	})
	t.Cleanup(func() {
		listener.Close()
		running.Wait() // the connections end when the proxy does
	})
	return s
}

func (s *echoServer) serve(conn net.Conn) {
	defer conn.Close()
	lines := bufio.NewReader(conn)
	for {
		line, err := lines.ReadString('\n')
		if err != nil {
			return
		}
		s.mu.Lock()
		s.got = append(s.got, line)
		s.mu.Unlock()
		if _, err := io.WriteString(conn, line); err != nil {
			return
		}
	}
}

func (s *echoServer) received(line string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, got := range s.got {
		if got == line {
			return true
		}
	}
	return false
}

// client is a connection with bounds.
type client struct {
	t     *testing.T
	conn  net.Conn
	lines *bufio.Reader
}

func dial(t *testing.T, addr string) *client {
	t.Helper()
	conn, err := net.DialTimeout("tcp", addr, 10*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return &client{t: t, conn: conn, lines: bufio.NewReader(conn)}
}

// mustBeTurnedAway expects a new connection to end at once, which a client may learn while it still connects.
func mustBeTurnedAway(t *testing.T, addr string) {
	t.Helper()
	conn, err := net.DialTimeout("tcp", addr, 10*time.Second)
	if err != nil {
		return
	}
	defer conn.Close()
	(&client{t: t, conn: conn, lines: bufio.NewReader(conn)}).mustBeBroken()
}

func (c *client) send(line string) {
	c.t.Helper()
	if _, err := io.WriteString(c.conn, line); err != nil {
		c.t.Fatalf("send: %v", err)
	}
}

// read returns what arrives within the time.
func (c *client) read(within time.Duration) (string, error) {
	if err := c.conn.SetReadDeadline(time.Now().Add(within)); err != nil {
		return "", err
	}
	return c.lines.ReadString('\n')
}

// mustEcho sends a line and expects it back.
func (c *client) mustEcho(line string) {
	c.t.Helper()
	c.send(line)
	c.mustRead(line)
}

func (c *client) mustRead(line string) {
	c.t.Helper()
	if got, err := c.read(10 * time.Second); err != nil || got != line {
		c.t.Fatalf("read %q, %v; want %q", got, err, line)
	}
}

// mustBeSilent expects that nothing arrives, and that the connection stays open.
func (c *client) mustBeSilent() {
	c.t.Helper()
	if got, err := c.read(80 * time.Millisecond); !errors.Is(err, os.ErrDeadlineExceeded) {
		c.t.Fatalf("read %q, %v; want silence", got, err)
	}
}

// mustBeBroken expects that the connection ends.
func (c *client) mustBeBroken() {
	c.t.Helper()
	if got, err := c.read(10 * time.Second); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		c.t.Fatalf("read %q, %v; want the connection's end", got, err)
	}
}
