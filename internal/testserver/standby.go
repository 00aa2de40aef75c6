package testserver

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"path/filepath"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
)

// Standby starts a second server that follows this one: asynchronous streaming replication, open for reading. It
// returns when the standby receives what happens here. The standby is closed by the caller, and in any order with its
// primary. While this server is down, its standbys wait for it.
func (s *Server) Standby(ctx context.Context) (*Server, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, ErrClosed
	}
	private.Lock()
	dir, err := nextPrivateDir(ctx, base(filepath.Dir(filepath.Dir(s.dir))))
	private.Unlock()
	if err != nil {
		return nil, err
	}
	standby, err := emptyServer(dir, s.bin)
	if err != nil {
		return nil, err
	}
	standby.password = s.password // copied with everything else
	name := "standby-" + filepath.Base(dir)
	err = standby.tool(ctx, "pg_basebackup", "--pgdata="+standby.data(), "--dbname="+s.replicationURL(name),
		"--write-recovery-conf", "--checkpoint=fast", "--wal-method=stream", "--no-sync")
	if err == nil {
		err = standby.startSomewhere(ctx)
	}
	if err == nil {
		err = s.awaitFollower(ctx, name)
	}
	if err != nil {
		return nil, errors.Join(err, standby.Close())
	}
	return standby, nil
}

// replicationURL is what the standby connects with, under a name by which the primary's views show it. The password
// is not in it.
func (s *Server) replicationURL(name string) string {
	u := url.URL{
		Scheme:   "postgres",
		User:     url.User(superuser),
		Host:     s.Addr(),
		RawQuery: url.Values{"sslmode": {"disable"}, "application_name": {name}}.Encode(),
	}
	return u.String()
}

// awaitFollower returns when the server streams to the standby of that name.
func (s *Server) awaitFollower(ctx context.Context, name string) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	return s.ask(ctx, func(conn *pgx.Conn) error {
		for {
			var streaming bool
			err := conn.QueryRow(ctx, "SELECT EXISTS (SELECT FROM pg_stat_replication "+
				"WHERE application_name = $1 AND state = 'streaming')", name).Scan(&streaming)
			if err != nil || streaming {
				return err
			}
			pause(10 * time.Millisecond)
		}
	})
}

// Promote makes a standby a primary of its own, on a new timeline. It returns when the server accepts writes. What
// its primary did without sending it is lost to it.
func (s *Server) Promote(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return ErrClosed
	}
	return s.ask(ctx, func(conn *pgx.Conn) error {
		var promoted bool
		seconds := strconv.Itoa(int(startTimeout / time.Second))
		err := conn.QueryRow(ctx, "SELECT pg_promote(true, "+seconds+")").Scan(&promoted)
		if err == nil && !promoted {
			err = errors.New("the server didn't leave recovery in time")
		}
		return err
	})
}

// ask does something on a connection of its own.
func (s *Server) ask(ctx context.Context, do func(conn *pgx.Conn) error) error {
	conn, err := pgx.Connect(ctx, s.URL())
	if err != nil {
		return fmt.Errorf("testserver: %w", err)
	}
	defer conn.Close(context.Background())
	if err := do(conn); err != nil {
		return fmt.Errorf("testserver: %w", err)
	}
	return nil
}
