package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/pglock/pglock-go/internal/bench/trial"
	"github.com/pglock/pglock-go/internal/testserver"
)

// peerPatience bounds the start of a peer's server.
const peerPatience = 15 * time.Second

// peer is a server that a kind of lock needs. The directory is in its arguments, so it ends with this
// process at the latest.
type peer struct {
	program, install string
	args             func(dir, address, second string) []string
	version          func(ctx context.Context, address string) (string, error) // of the server, once it is ready
}

// peers are a Redis without snapshots, and a single etcd with its default durability.
var peers = map[string]*peer{
	kindRedis: &redisPeer, kindRedisPipelined: &redisPeer, kindRedisFastest: &redisPeer,
	kindEtcd: &etcdPeer, kindEtcdBatched: &etcdPeer,
}

var redisPeer = peer{
	program: "redis-server", install: "apt-get install redis-server",
	args: func(dir, address, _ string) []string {
		_, port, _ := net.SplitHostPort(address)
		// With a title for the process, the directory would not be in its arguments any more.
		return []string{"--dir", dir + "/", "--set-proc-title", "no", "--bind", "127.0.0.1", "--port", port, "--save", "", "--appendonly", "no"}
	},
	version: func(ctx context.Context, address string) (string, error) {
		client := redis.NewClient(&redis.Options{Addr: address})
		defer client.Close()
		info, err := client.InfoMap(ctx, "server").Result()
		return info["Server"]["redis_version"], err
	},
}

var etcdPeer = peer{
	program: "etcd", install: "apt-get install etcd-server",
	args: func(dir, address, second string) []string {
		client, peer := "http://"+address, "http://"+second
		return []string{
			"--data-dir", dir + "/data", "--log-level", "error", "--listen-client-urls", client, "--advertise-client-urls", client,
			"--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", "default=" + peer,
			"--max-txn-ops", strconv.Itoa(2 * maxBatch), // each call of a batch is a transaction with an operation
		}
	},
	version: func(ctx context.Context, address string) (string, error) {
		session, closeAll, err := openSession(ctx, address) // once there is a leader
		if err != nil {
			return "", err
		}
		defer closeAll()
		status, err := session.Client().Status(ctx, address)
		if err != nil {
			return "", err
		}
		return status.Version, nil
	},
}

// find returns the path of the program that testdata/bench/peers.sh has put into the user's cache, or else
// of the one in PATH, which is often years older.
func (p *peer) find() (path string, err error) {
	cache, _ := os.UserCacheDir()
	for _, program := range []string{filepath.Join(cache, "pglock-test", "peers", p.program), p.program} {
		if path, err = exec.LookPath(program); err == nil {
			return path, nil
		}
	}
	return "", fmt.Errorf("%w: no %s in PATH: testdata/bench/peers.sh, or %s", trial.ErrMissing, p.program, p.install)
}

// start starts the server until the row is done, and returns its address once it answers.
func (p *peer) start(ctx context.Context, s *trial.Scope) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, peerPatience)
	defer cancel()
	path, err := p.find()
	if err != nil {
		return "", err
	}
	address, err := freeAddress(ctx)
	second, err2 := freeAddress(ctx)
	dir, err3 := testserver.Dir()
	if err := errors.Join(err, err2, err3); err != nil {
		return "", err
	}
	log, err := os.Create(dir + "/log")
	if err != nil {
		return "", err
	}
	cmd := exec.Command(path, p.args(dir, address, second)...) //nolint:noctx // it ends with the row
	cmd.Dir, cmd.Stdout, cmd.Stderr, cmd.SysProcAttr = dir, log, log, detached()
	if err := cmd.Start(); err != nil {
		return "", errors.Join(err, log.Close())
	}
	s.Defer(func() error {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		return errors.Join(log.Close(), os.RemoveAll(dir))
	})
	var version string
	testserver.Poll(ctx, peerPatience, func() bool {
		version, err = p.version(ctx, address)
		return err == nil
	})
	s.Server(p.program, version)
	return address, err
}

// freeAddress returns an address of this machine on which nothing listens.
func freeAddress(ctx context.Context) (string, error) {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer l.Close()
	return l.Addr().String(), nil
}

// address returns where the server of a kind of lock is. A peer's server is started when the first subject
// needs it.
func (l *lab) address(ctx context.Context, s *trial.Scope, kind string) (_ string, err error) {
	p, found := peers[kind]
	switch {
	case !found:
		return l.url, nil
	case l.peers[p] == "":
		l.peers[p], err = p.start(ctx, s)
	}
	return l.peers[p], err
}
