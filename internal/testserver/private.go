package testserver

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"sync"

	"github.com/pglock/pglock-go/internal/testserver/process"
)

// private is where this process keeps servers of its own.
var private struct {
	sync.Mutex
	dirs       map[base]string // each with a keeper that removes it when this process is gone
	count      int             // of the servers so far
	downloaded string          // the programs, if they had to be
}

// Start starts a server that belongs to the calling process, from this machine's PostgreSQL or else from a downloaded
// one. A container or a server that somebody named is of no use here, since its processes can't be paused or killed.
// The caller closes the server; if it dies instead, its keeper does so. ctx bounds the start only.
func Start(ctx context.Context, options Options) (*Server, error) {
	home := fastBase()
	if options.Durable {
		home = diskBase()
	}
	private.Lock()
	dir, err := nextPrivateDir(ctx, home)
	if err == nil && options.BinDir == "" {
		options.BinDir, err = privateBinaries(ctx, filepath.Dir(dir))
	}
	private.Unlock()
	if err != nil {
		return nil, err
	}
	return newServer(ctx, dir, options)
}

// nextPrivateDir returns the name of a directory for one more server. The caller holds the lock.
func nextPrivateDir(ctx context.Context, home base) (string, error) {
	dir, found := private.dirs[home]
	if !found {
		var err error
		if dir, err = makePrivateDir(ctx, home); err != nil {
			return "", err
		}
		if private.dirs == nil {
			private.dirs = make(map[base]string)
		}
		private.dirs[home] = dir
	}
	private.count++
	return filepath.Join(dir, strconv.Itoa(private.count)), nil
}

// makePrivateDir makes the directory and starts its keeper. The keeper need not be up yet: whenever it comes up, it
// sees whether this process still lives.
func makePrivateDir(ctx context.Context, home base) (string, error) {
	self, err := process.Self()
	if err != nil {
		return "", err
	}
	lock, err := home.lock(ctx)
	if err != nil {
		return "", err
	}
	defer lock.release()
	dir, err := home.make(privatePrefix + self.String())
	if err != nil {
		return "", err
	}
	if _, err = (job{Task: taskKeep, Dir: dir, Owner: self}).detach(keeperLog); err != nil {
		return "", errors.Join(err, os.RemoveAll(dir))
	}
	return dir, nil
}

// privateBinaries returns PostgreSQL's programs. If they have to be downloaded, that is done once, into dir. The
// caller holds the lock.
func privateBinaries(ctx context.Context, dir string) (string, error) {
	bin, err := findBinaries()
	if err == nil {
		return bin, nil
	}
	if private.downloaded != "" {
		return private.downloaded, nil
	}
	config, err2 := readConfig()
	if err2 == nil {
		private.downloaded, err2 = config.fetch(ctx, dir)
	}
	if err2 != nil {
		return "", fmt.Errorf("testserver: a server of one's own needs PostgreSQL on this machine: %w; "+
			"nor could it be downloaded: %w", err, err2)
	}
	return private.downloaded, nil
}
