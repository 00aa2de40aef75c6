package faultproxy_test

import (
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/pglock/pglock-go/internal/faultproxy"
	"github.com/pglock/pglock-go/internal/pgtest"
)

func TestForwardsAndCounts(t *testing.T) {
	t.Parallel()
	server := newEchoServer(t)
	proxy := faultproxy.New(t, server.addr)
	one, two := dial(t, proxy.Addr()), dial(t, proxy.Addr())
	one.mustEcho("hello\n")
	two.mustEcho("there\n")
	two.conn.Close()
	pgtest.Eventually(t, "one of two connections is left", func() bool {
		return proxy.Stats() == faultproxy.Stats{Accepted: 2, Open: 1, ToServer: 12}
	})
}

func TestForwardsHalfClose(t *testing.T) {
	t.Parallel()
	server := newEchoServer(t)
	c := dial(t, faultproxy.New(t, server.addr).Addr())
	c.send("last\n")
	if err := c.conn.(interface{ CloseWrite() error }).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	c.mustRead("last\n")
	if _, err := c.read(10 * time.Second); !errors.Is(err, io.EOF) {
		t.Errorf("got %v, want the end of the stream", err)
	}
}

func TestCutHoldsBothDirections(t *testing.T) {
	t.Parallel()
	server := newEchoServer(t)
	proxy := faultproxy.New(t, server.addr)
	c := dial(t, proxy.Addr())
	c.mustEcho("before\n")

	proxy.Cut()
	c.send("during\n")
	c.mustBeSilent()
	if server.received("during\n") {
		t.Error("a request passed a cut network")
	}
	late := dial(t, proxy.Addr())
	late.send("late\n")
	late.mustBeSilent()

	proxy.Heal()
	c.mustRead("during\n")
	late.mustRead("late\n")
}

func TestCutHoldsAReply(t *testing.T) {
	t.Parallel()
	server := newEchoServer(t)
	proxy := faultproxy.New(t, server.addr)
	c := dial(t, proxy.Addr())
	c.mustEcho("before\n")

	proxy.Delay(300 * time.Millisecond)
	c.send("question\n")
	pgtest.Eventually(t, "the request arrives", func() bool { return server.received("question\n") })
	proxy.Cut() // the reply is on its way
	if got, err := c.read(500 * time.Millisecond); err == nil {
		t.Fatalf("read %q; want silence", got)
	}
	proxy.Heal()
	c.mustRead("question\n")
}

func TestDropRepliesLosesOnlyReplies(t *testing.T) {
	t.Parallel()
	server := newEchoServer(t)
	proxy := faultproxy.New(t, server.addr)
	hurt, idle := dial(t, proxy.Addr()), dial(t, proxy.Addr())
	hurt.mustEcho("before\n")
	idle.mustEcho("before\n")

	proxy.DropReplies()
	hurt.send("applied\n")
	pgtest.Eventually(t, "the request arrives", func() bool { return server.received("applied\n") })
	hurt.mustBeSilent()
	late := dial(t, proxy.Addr())
	late.send("late\n")
	pgtest.Eventually(t, "the late request arrives", func() bool { return server.received("late\n") })
	late.mustBeSilent()

	proxy.Heal()
	idle.mustEcho("unhurt\n")
	hurt.send("after\n")
	hurt.mustBeSilent() // its stream has a hole
	dial(t, proxy.Addr()).mustEcho("new\n")
}

// TestSever breaks a connection that is in use and one that the proxy has not yet forwarded.
func TestSever(t *testing.T) {
	t.Parallel()
	server := newEchoServer(t)
	proxy := faultproxy.New(t, server.addr)
	used := dial(t, proxy.Addr())
	used.mustEcho("before\n")
	proxy.Cut()
	hung := dial(t, proxy.Addr())
	pgtest.Eventually(t, "the proxy takes it", func() bool { return proxy.Stats().Open == 2 })
	proxy.Sever()
	used.mustBeBroken()
	hung.mustBeBroken()
	if open := proxy.Stats().Open; open != 0 {
		t.Errorf("%d connections are open", open)
	}
	proxy.Heal()
	dial(t, proxy.Addr()).mustEcho("again\n")
}

// TestRefuse: new connections end at once, as they do without a server.
func TestRefuse(t *testing.T) {
	t.Parallel()
	server := newEchoServer(t)
	proxy := faultproxy.New(t, server.addr)
	old := dial(t, proxy.Addr())
	old.mustEcho("before\n")
	proxy.Refuse(true)
	mustBeTurnedAway(t, proxy.Addr())
	mustBeTurnedAway(t, faultproxy.New(t, "127.0.0.1:1").Addr())
	old.mustEcho("still\n")
	proxy.Refuse(false)
	dial(t, proxy.Addr()).mustEcho("again\n")
}

func TestDelayIsOneWay(t *testing.T) {
	t.Parallel()
	server := newEchoServer(t)
	proxy := faultproxy.New(t, server.addr)
	c := dial(t, proxy.Addr())
	c.mustEcho("before\n")
	const delay = 150 * time.Millisecond
	proxy.Delay(delay)
	begin := time.Now()
	c.mustEcho("slow\n")
	if took := time.Since(begin); took < 2*delay {
		t.Errorf("there and back took %v, want at least twice %v", took, delay)
	}
	// Delayed is not slowed down: many lines on their way together arrive together.
	begin = time.Now()
	c.send(strings.Repeat("line\n", 20))
	for range 20 {
		c.mustRead("line\n")
	}
	if took := time.Since(begin); took > 20*delay { // one after the other would take twice that
		t.Errorf("20 lines took %v", took)
	}
	proxy.Delay(0)
	begin = time.Now()
	c.mustEcho("fast\n")
	if took := time.Since(begin); took >= 2*delay {
		t.Errorf("without a delay it took %v", took)
	}
}

func TestFreezeIsForGood(t *testing.T) {
	t.Parallel()
	server := newEchoServer(t)
	proxy := faultproxy.New(t, server.addr)
	before := dial(t, proxy.Addr())
	before.mustEcho("before\n")
	proxy.Freeze(true)
	during := dial(t, proxy.Addr())
	for _, c := range []*client{before, during} {
		c.send("during\n")
		c.mustBeSilent()
	}
	proxy.Freeze(false)
	dial(t, proxy.Addr()).mustEcho("new\n")
	for _, c := range []*client{before, during} {
		c.send("after\n")
		c.mustBeSilent()
	}
	if server.received("during\n") || server.received("after\n") {
		t.Error("a request passed a frozen connection")
	}
}
