package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/leader"
)

// leaderTimeout bounds the read of the row for one request.
const leaderTimeout = 3 * time.Second

// serveLeader tells who leads until the returned function is called. Each answer is from the row of the election, and
// never from memory: a process that was paused, or that is cut off from the database, must not say that it leads.
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
	listener, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", f.http)
	if err != nil {
		return nil, &failure{statusUsage, fmt.Errorf("--http: %w", err)}
	}
	mux := http.NewServeMux()
	answer := func(path string, of func(l leader.Leader) (status int, body any)) {
		mux.HandleFunc("GET "+path, func(w http.ResponseWriter, r *http.Request) {
			ctx, cancel := context.WithTimeout(r.Context(), leaderTimeout)
			defer cancel()
			l, err := e.Leader(ctx)
			status, body := http.StatusServiceUnavailable, any(map[string]string{"error": "the database does not answer"})
			if err == nil || errors.Is(err, leader.ErrNoLeader) {
				status, body = of(l)
			}
			w.Header().Set("Content-Type", "application/json")
			w.Header().Set("Cache-Control", "no-store")
			w.WriteHeader(status)
			_ = encodeJSON(w, body, false) // the peer has gone
		})
	}
	answer("/leader", func(l leader.Leader) (int, any) {
		if !l.Elected() {
			return http.StatusServiceUnavailable, map[string]string{"error": "there is no leader"}
		}
		return http.StatusOK, leaderJSON{l.Name, l.Payload, l.Token, l.Since}
	})
	answer("/self", func(l leader.Leader) (int, any) {
		lease := f.lease.Load()
		leads := lease != nil && lease.Err() == nil && l.Token == lease.Token()
		if leads {
			return http.StatusOK, map[string]bool{"leader": true}
		}
		return http.StatusServiceUnavailable, map[string]bool{"leader": false}
	})
	answer("/healthz", func(leader.Leader) (int, any) { return http.StatusOK, map[string]bool{"ok": true} })
	server := &http.Server{Handler: mux, ReadHeaderTimeout: leaderTimeout, IdleTimeout: time.Minute}
	go func() { _ = server.Serve(listener) }() // until it is closed
	f.infof("listening on %s", listener.Addr())
	return func() { _ = server.Close() }, nil
}

type leaderJSON struct {
	Leader  string       `json:"leader"`
	Payload string       `json:"payload"`
	Token   pglock.Token `json:"token"`
	Since   time.Time    `json:"since"`
}
