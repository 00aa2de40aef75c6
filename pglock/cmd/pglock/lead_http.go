package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/leader"
)

const (
	leaderTimeout = 3 * time.Second  // bounds the read of the row for one request, and that of its header
	readTimeout   = 10 * time.Second // bounds the read of a request with its body
	maxConns      = 64               // of all peers together, far below a usual limit of open files
)

// serveLeader serves the current leader until the returned function is called. Each answer is from
// the row of the election, and never from memory, because a process that was paused, or that is cut
// off from the database, must not say that it leads.
//
//	/leader   200 and the leader as JSON; 503 if there is none
//	/self     200 if this process leads by the row, 503 otherwise
//	/healthz  200 if the row can be read
func (f *runFlags) serveLeader(client *pglock.Client, name string) (stop func(), err error) {
	if f.http == "" {
		return func() {}, nil
	}
	e, err := leader.New(client, name)
	if err != nil {
		return nil, err
	}
	answer := func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), leaderTimeout)
		defer cancel()
		l, err := e.Leader(ctx)
		lease, ok, body := f.lease.Load(), true, any(map[string]any{"leader": l.Name, "payload": l.Payload, "token": l.Token, "since": l.Since})
		switch {
		case err != nil && !errors.Is(err, leader.ErrNoLeader):
			ok, body = false, map[string]string{"error": "the database does not answer"}
		case r.URL.Path == "/healthz":
			body = map[string]bool{"ok": true}
		case r.URL.Path == "/self":
			ok = lease != nil && lease.Err() == nil && l.Token == lease.Token()
			body = map[string]bool{"leader": ok}
		case err != nil:
			ok, body = false, map[string]string{"error": "there is no leader"}
		}
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Cache-Control", "no-store")
		if !ok {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		_ = encodeJSON(w, body, false) // the peer has gone
	}
	mux := http.NewServeMux()
	for _, path := range []string{"/leader", "/self", "/healthz"} {
		mux.HandleFunc("GET "+path, answer)
	}
	address, stop, err := serve("http", f.http, mux)
	if err == nil {
		f.infof("listening on %s", address)
	}
	return stop, err
}

// serve answers requests to an address, which a flag has, until stop is called.
func serve(flag, address string, h http.Handler) (at net.Addr, stop func(), err error) {
	listener, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", address)
	if err != nil {
		return nil, nil, &failure{statusUsage, fmt.Errorf("--%s: %w", flag, err)}
	}
	server := &http.Server{Handler: h, ReadHeaderTimeout: leaderTimeout, ReadTimeout: readTimeout, IdleTimeout: time.Minute, ConnState: new(recent).track}
	go func() { _ = server.Serve(listener) }() // until it is closed
	return listener.Addr(), func() { _ = server.Close() }, nil
}

// recent has the open connections, the one whose state has changed last at the end.
type recent struct {
	mu   sync.Mutex
	open []net.Conn
}

// track closes the connection that has been without a change for longest when there are too many. A
// probe that connects while others keep their connections open is answered, and a limit of the
// listener would let it wait.
func (r *recent) track(c net.Conn, state http.ConnState) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.open = slices.DeleteFunc(r.open, func(o net.Conn) bool { return o == c })
	if state != http.StateClosed {
		r.open = append(r.open, c)
	}
	if len(r.open) > maxConns {
		_ = r.open[0].Close() // its state becomes closed
		r.open = r.open[1:]
	}
}
