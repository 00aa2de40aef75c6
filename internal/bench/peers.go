package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"time"

	"github.com/redis/go-redis/v9"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/pglock/pglock-go/internal/bench/trial"
	"github.com/pglock/pglock-go/internal/testserver"
)

// peerPatience bounds the start of a peer's server.
const peerPatience = 15 * time.Second

// missing returns the error for a peer that is not installed.
func missing(program, hint string) error {
	return fmt.Errorf("%w: no %s in PATH: %s", trial.ErrMissing, program, hint)
}

// freeAddress returns an address of this machine on which nothing listens.
func freeAddress(ctx context.Context) (string, error) {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer func() { _ = l.Close() }()
	return l.Addr().String(), nil
}

// serve runs a peer's server in a directory from testserver.Dir until the row is done. The directory is
// in its arguments, so it ends with this process at the latest.
func serve(s *trial.Scope, dir, program string, args ...string) error {
	log, err := os.Create(dir + "/log")
	if err != nil {
		return err
	}
	cmd := exec.Command(program, args...) //nolint:noctx // it ends with the row
	cmd.Dir, cmd.Stdout, cmd.Stderr, cmd.SysProcAttr = dir, log, log, detached()
	if err := cmd.Start(); err != nil {
		return errors.Join(err, log.Close())
	}
	s.Defer(func() error {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		return errors.Join(log.Close(), os.RemoveAll(dir))
	})
	return nil
}

// until repeats try until it succeeds, for peerPatience.
func until(ctx context.Context, try func(ctx context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, peerPatience)
	defer cancel()
	for {
		err := try(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			return err
		}
	}
}

// peerServers are started when the first subject needs them.
type peerServers struct{ redis, etcd string }

// address returns where the server of a kind of lock is.
func (l *lab) address(ctx context.Context, s *trial.Scope, kind string) (_ string, err error) {
	switch kind {
	case kindRedis:
		if l.peers.redis == "" {
			l.peers.redis, err = startRedis(ctx, s)
		}
		return l.peers.redis, err
	case kindEtcd:
		if l.peers.etcd == "" {
			l.peers.etcd, err = startEtcd(ctx, s)
		}
		return l.peers.etcd, err
	}
	return l.server.URL(), nil
}

// startRedis starts a Redis without snapshots and returns its address.
func startRedis(ctx context.Context, s *trial.Scope) (string, error) {
	program, err := exec.LookPath("redis-server")
	if err != nil {
		return "", missing("redis-server", "apt-get install redis-server")
	}
	addr, err := freeAddress(ctx)
	if err != nil {
		return "", err
	}
	dir, err := testserver.Dir()
	if err != nil {
		return "", err
	}
	_, port, _ := net.SplitHostPort(addr)
	// Otherwise it replaces its arguments by a title, and the directory is not in them any more.
	err = serve(s, dir, program, "--dir", dir+"/", "--set-proc-title", "no", "--bind", "127.0.0.1", "--port", port, "--save", "", "--appendonly", "no")
	if err != nil {
		return "", err
	}
	client := redis.NewClient(&redis.Options{Addr: addr})
	defer func() { _ = client.Close() }()
	return addr, until(ctx, func(ctx context.Context) error { return client.Ping(ctx).Err() })
}

// startEtcd starts a single etcd with its default durability and returns its endpoint.
func startEtcd(ctx context.Context, s *trial.Scope) (string, error) {
	program, err := exec.LookPath("etcd")
	if err != nil {
		return "", missing("etcd", "apt-get install etcd-server")
	}
	client, err := freeAddress(ctx)
	if err != nil {
		return "", err
	}
	peer, err := freeAddress(ctx)
	if err != nil {
		return "", err
	}
	dir, err := testserver.Dir()
	if err != nil {
		return "", err
	}
	here := func(addr string) string { return (&url.URL{Scheme: "http", Host: addr}).String() }
	err = serve(s, dir, program, "--data-dir", dir+"/data", "--log-level", "error",
		"--listen-client-urls", here(client), "--advertise-client-urls", here(client),
		"--listen-peer-urls", here(peer), "--initial-advertise-peer-urls", here(peer), "--initial-cluster", "default="+here(peer))
	if err != nil {
		return "", err
	}
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{client}, DialTimeout: peerPatience})
	if err != nil {
		return "", err
	}
	defer func() { _ = c.Close() }()
	return client, until(ctx, func(ctx context.Context) error { _, err := c.Get(ctx, "ready"); return err })
}
