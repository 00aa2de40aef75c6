package ui_test

import (
	"bufio"
	"context"
	"errors"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pglock/pglock-go/internal/locktest"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/ui"
)

// open opens the stream of a page, and returns its events. The channel is closed at its end.
func open(ctx context.Context, t *testing.T, url string) <-chan string {
	t.Helper()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	locktest.OK(t, err)
	r.Header.Set("Accept", "text/event-stream")
	transport := &http.Transport{}
	response, err := transport.RoundTrip(r)
	locktest.OK(t, err)
	if response.StatusCode != http.StatusOK || response.Header.Get("Content-Type") != "text/event-stream" || response.Header.Get("Content-Security-Policy") == "" {
		t.Fatalf("%s, %v", response.Status, response.Header)
	}
	events, done := make(chan string), make(chan struct{})
	go func() {
		defer close(done)
		defer close(events)
		defer transport.CloseIdleConnections()
		defer func() { _ = response.Body.Close() }()
		var event strings.Builder
		for lines := bufio.NewReader(response.Body); ; {
			line, err := lines.ReadString('\n')
			if err != nil {
				return
			}
			if data, ok := strings.CutPrefix(line, "data: "); ok {
				event.WriteString(data)
			} else if line == "\n" && event.Len() > 0 {
				select { // the test may have ended
				case events <- event.String():
				case <-ctx.Done():
				}
				event.Reset()
			}
		}
	}()
	t.Cleanup(func() { locktest.Receive(t, done) })
	return events
}

// until waits for an event with a text.
func until(t *testing.T, events <-chan string, text string) string {
	t.Helper()
	for deadline := time.After(pgtest.Patience); ; {
		select {
		case event, ok := <-events:
			if !ok {
				t.Fatal("the stream has ended")
			}
			if strings.Contains(event, text) {
				return event
			}
		case <-deadline:
			t.Fatalf("no event has %q", text)
		}
	}
}

// TestUpdates: each open page gets what has changed, however short the write time-out of the server, and a
// viewer who leaves ends the stream.
func TestUpdates(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	server := httptest.NewUnstartedServer(f.handler(ui.Read))
	server.Config.WriteTimeout = time.Second
	server.Start()
	t.Cleanup(server.Close) // waits for the streams
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	list, lock, other := open(ctx, t, server.URL+"/locks?state="), open(ctx, t, server.URL+"/lock?name=line%0Abreak"), open(ctx, t, server.URL+"/lock?name=other")
	event := until(t, list, "No name has been locked yet")
	contains(t, "the update", event, "As of")
	lacks(t, "the update", event, "<html", "<h1", "<form")
	until(t, lock, "Nobody holds it")
	l := f.try(f.client.Lock("line\nbreak"))
	contains(t, "the list", until(t, list, "1–1 of 1 locks"), "line", "break")
	until(t, lock, "unless renewed")
	locktest.OK(t, l.Release(t.Context()))
	until(t, lock, "Nobody holds it")
	contains(t, "the list", until(t, list, "released"), `<svg class="spark"`)
	l = f.try(f.client.Lock("other"), pglock.WithHolder("holder of the other"))
	until(t, other, "holder of the other")
	for range 3 { // they are read in turns
		lacks(t, "a lock", until(t, lock, ""), "holder of the other")
		contains(t, "the other lock", until(t, other, ""), "holder of the other")
	}
	locktest.OK(t, l.Release(t.Context()))
}

// TestTextOfOthersIsNoEvent: the end of a grant is any text of a role that may write the row, and a
// carriage return ends a line of a stream.
func TestTextOfOthersIsNoEvent(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.sql(`INSERT INTO pglock.distributed_locks (name, token, version, labels, acquired_at, expires_at, last_holder, last_end)
		VALUES ('n', 1, 1, '{"payload": ""}', now(), '-infinity', 'h', E'spoof\r\rdata: all is well\rretry: 1\u202e')`)
	h := f.handler(ui.Read)
	server := httptest.NewServer(h)
	t.Cleanup(server.Close)
	for _, path := range []string{"/locks?state=", "/lock?name=n", "/elections"} {
		contains(t, path, see(t, h, path), `spoof<span class="odd">\r</span>`, `<span class="odd">\u202e</span>`)
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL+path, nil)
		locktest.OK(t, err)
		request.Header.Set("Accept", "text/event-stream")
		transport := &http.Transport{}
		response, err := transport.RoundTrip(request)
		locktest.OK(t, err)
		event := ""
		for lines := bufio.NewReader(response.Body); !strings.Contains(event, "spoof") || !strings.HasSuffix(event, "\n\n"); {
			line, err := lines.ReadString('\n')
			locktest.OK(t, err)
			event += line
		}
		_ = response.Body.Close()
		transport.CloseIdleConnections()
		for _, line := range strings.FieldsFunc(event, func(r rune) bool { return r == '\r' || r == '\n' }) {
			if !strings.HasPrefix(line, "data: ") && !strings.HasPrefix(line, ":") || strings.HasPrefix(line, "data: all is well") {
				t.Errorf("%s: the stream has the line %q", path, line)
			}
		}
	}
}

// TestOpenBodies: a body that does not arrive holds a connection for a while only, whether it is
// refused, read, or not looked at.
func TestOpenBodies(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	server := httptest.NewServer(f.handler(ui.Operate)) // without time-outs
	t.Cleanup(server.Close)
	const form = "Host: localhost\r\nContent-Type: application/x-www-form-urlencoded\r\n"
	ended := make(chan string)
	requests := map[string]string{
		"an action":        "POST /release?name=n HTTP/1.1\r\n" + form + "Content-Length: 10\r\n\r\nt",
		"chunks":           "POST /release?name=n HTTP/1.1\r\n" + form + "Transfer-Encoding: chunked\r\n\r\n5\r\nt",
		"without access":   "POST /revoke?name=n HTTP/1.1\r\n" + form + "Content-Length: 10\r\n\r\nt",
		"without a method": "POST / HTTP/1.1\r\n" + form + "Content-Length: 10\r\n\r\nt",
		"a page":           "GET /clients HTTP/1.1\r\n" + form + "Content-Length: 10\r\n\r\nt",
		"without a page":   "GET /no-such-page HTTP/1.1\r\n" + form + "Content-Length: 10\r\n\r\nt",
		"whether it is up": "GET /healthz HTTP/1.1\r\n" + form + "Transfer-Encoding: chunked\r\n\r\n5\r\nt",
		"a static file":    "GET /ui.css HTTP/1.1\r\n" + form + "Content-Length: 10\r\n\r\nt",
	}
	for what, request := range requests {
		conn, err := net.Dial("tcp", server.Listener.Addr().String())
		locktest.OK(t, err)
		t.Cleanup(func() { _ = conn.Close() })
		_, err = io.WriteString(conn, request)
		locktest.OK(t, err)
		go func() {
			_, _ = io.Copy(io.Discard, conn) // until the server ends it
			ended <- what
		}()
	}
	for len(requests) > 0 {
		select {
		case what := <-ended:
			delete(requests, what)
		case <-time.After(pgtest.Patience):
			t.Fatalf("still open: %q", slices.Sorted(maps.Keys(requests)))
		}
	}
}

// TestOutage: while the database does not answer, a page has what it had before, and says since
// when; one that was never read says why it has nothing.
func TestOutage(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	h := f.handler(ui.Read)
	server := httptest.NewServer(h)
	t.Cleanup(server.Close)
	defer func(l *pglock.Lease) { _ = l.Release(context.Background()) }(f.try(f.client.Lock("account:17"), pglock.WithHolder("alice")))
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	list := open(ctx, t, server.URL+"/locks")
	lacks(t, "the page", until(t, list, "account:17"), "No answer since", `class="old"`)
	f.sql("ALTER VIEW pglock.locks_held RENAME TO away")
	const since = `<b id="old">No answer since `
	event := until(t, list, since)
	contains(t, "an old page", event, `role="alert"`, `<div class="old">`, "account:17", "alice", "pglock: ")
	_, at, _ := strings.Cut(event, since)
	contains(t, "an old page", event, " "+at[:len("15:04:05")]+"</time> UTC") // as of the same second
	code, body := get(t, h, "/locks")
	if contains(t, "an old page", body, since, "account:17"); code != http.StatusServiceUnavailable {
		t.Errorf("an old page: %d", code)
	}
	code, body = get(t, h, "/waiting")
	if contains(t, "a page", body, `class="problem"`, "pglock: "); code != http.StatusServiceUnavailable || strings.Contains(body, since) {
		t.Errorf("a page that was never read: %d, %s", code, body)
	}
	f.sql("ALTER VIEW pglock.away RENAME TO locks_held")
	for event = since; strings.Contains(event, since); {
		event = until(t, list, "account:17")
	}
	lacks(t, "the page", event, "problem", `class="old"`)
}

// TestStreamsEnd when the server shuts down, which waits for them.
func TestStreamsEnd(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	h := f.handler(ui.Read)
	for range 2 { // one handler on two servers
		server := &http.Server{Handler: h, ReadHeaderTimeout: time.Minute}
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		locktest.OK(t, err)
		served := make(chan error, 1)
		go func() { served <- server.Serve(listener) }()
		url := "http://" + listener.Addr().String()
		streams := []<-chan string{open(t.Context(), t, url+"/locks"), open(t.Context(), t, url+"/waiting")}
		ctx, cancel := context.WithTimeout(t.Context(), pgtest.Patience)
		locktest.OK(t, server.Shutdown(ctx))
		cancel()
		for _, events := range streams {
			for range events { // until it is closed
			}
		}
		if err := locktest.Receive(t, served); !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
	}
}

// TestStreamsNeedAccess: a viewer who may no longer look gets no more updates.
func TestStreamsNeedAccess(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	var access atomic.Int64
	access.Store(int64(ui.Read))
	server := httptest.NewServer(f.handler(ui.None, ui.Options{Authorize: func(*http.Request) ui.Access { return ui.Access(access.Load()) }}))
	t.Cleanup(server.Close)
	events := open(t.Context(), t, server.URL+"/locks")
	until(t, events, "No name")
	access.Store(int64(ui.None))
	for deadline := time.After(pgtest.Patience); ; {
		select {
		case _, ok := <-events: // one may be on its way
			if !ok {
				return
			}
		case <-deadline:
			t.Fatal("the stream goes on")
		}
	}
}

// TestOnlyLivePagesHaveStreams: others answer with the page.
func TestOnlyLivePagesHaveStreams(t *testing.T) {
	t.Parallel()
	h := newFixture(t).handler(ui.Read)
	for path, want := range map[string]string{"/doctor": "text/html; charset=utf-8", "/ui.js": "text/javascript; charset=utf-8", "/no-such-page": "text/plain; charset=utf-8"} {
		ctx, cancel := context.WithTimeout(t.Context(), pgtest.Patience)
		defer cancel()
		r := httptest.NewRequestWithContext(ctx, http.MethodGet, path, nil)
		r.Header.Set("Accept", "text/event-stream")
		w := httptest.NewRecorder()
		if h.ServeHTTP(w, r); w.Header().Get("Content-Type") != want {
			t.Errorf("%s is %s", path, w.Header().Get("Content-Type"))
		}
	}
	w := &unflushable{header: http.Header{}} // of a middleware that collects what is written
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	r.Header.Set("Accept", "text/event-stream")
	h.ServeHTTP(w, r) // returns
}

type unflushable struct {
	io.Writer
	header http.Header
}

func (w *unflushable) Header() http.Header         { return w.header }
func (w *unflushable) Write(p []byte) (int, error) { return len(p), nil }
func (w *unflushable) WriteHeader(int)             {}
