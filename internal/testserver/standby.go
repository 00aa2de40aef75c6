package testserver

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/jackc/pgx/v5"
)

// Standby starts a server that follows this one by asynchronous streaming replication, and accepts
// reads. It returns when the standby receives changes. The caller closes it, in any order with its
// primary. A standby waits for a primary that is down.
func (s *Server) Standby(ctx context.Context) (standby *Server, err error) {
	err = s.operate(func() error {
		dir := s.dir + "-" + strings.ToLower(rand.Text()[:6])
		if standby, err = newServer(dir, s.bin); err != nil {
			return err
		}
		name := filepath.Base(dir)
		primary := fmt.Sprintf("host=127.0.0.1 port=%d user=%s sslmode=disable application_name=%s", s.port, Superuser, name)
		err = standby.tool(ctx, "pg_basebackup", "--pgdata="+standby.data(), "--dbname="+primary,
			"--write-recovery-conf", "--checkpoint=fast", "--wal-method=stream", "--no-sync")
		if err == nil {
			err = standby.startOnFreePort(ctx)
		}
		if err == nil {
			err = s.awaitFollower(ctx, name)
		}
		if err != nil {
			return errors.Join(err, standby.Close())
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return standby, nil
}

// awaitFollower returns when the server streams to the standby of that name.
func (s *Server) awaitFollower(ctx context.Context, name string) error {
	conn, err := pgx.Connect(ctx, s.URL())
	if err != nil {
		return fmt.Errorf("testserver: %w", err)
	}
	defer conn.Close(context.WithoutCancel(ctx))
	const sql = "SELECT count(*) > 0 FROM pg_stat_replication WHERE application_name = $1 AND state = 'streaming'"
	var streaming bool
	if !Poll(ctx, startTimeout, func() bool {
		err = conn.QueryRow(ctx, sql, name).Scan(&streaming)
		return err != nil || streaming
	}) {
		return errors.New("testserver: the standby does not connect to its primary")
	}
	return err
}

// Promote makes a standby a primary, on a new timeline. It returns when the server accepts writes.
// Changes that the old primary did not send are lost.
func (s *Server) Promote(ctx context.Context) error {
	return s.operate(func() error {
		return s.tool(ctx, "pg_ctl", "promote", "--silent", "--wait", "--timeout="+seconds(startTimeout), "--pgdata="+s.data())
	})
}
