package testserver

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// A home is a directory for the servers of one process:
//
//	pglock-test-<random>/
//	    <random>/     one directory per server
//	    container     the name of the container, if there is one
//	pglock-test-<random>.lock
//
// The process and its keeper share a lock on the lock file. A home whose lock is free is a leftover.
type home struct {
	dir    string
	lock   *os.File
	keeper io.Closer // ends the keeper; nil on Windows

	mu        sync.Mutex
	templates map[string]string // clusters that were never started, by the directory of their programs
}

const (
	homePrefix    = "pglock-test-"
	lockSuffix    = ".lock"
	containerFile = "container"

	// keeperVariable makes Hook the keeper of the home that it names.
	keeperVariable = "PGLOCK_TESTSERVER_KEEPER"
)

var (
	hooked atomic.Bool
	homes  struct {
		sync.Mutex
		in map[string]*home // by root
	}

	errNotHooked = errors.New("testserver: Hook was not called: call it first in main, or pgtest.Main in TestMain")
)

// Hook must be the first call in main or TestMain of a program that uses this package. In a keeper
// process it waits for the end of the parent, removes what the parent left, and exits. In any other
// process it returns at once.
func Hook() {
	hooked.Store(true)
	dir, found := os.LookupEnv(keeperVariable)
	if !found {
		return
	}
	signal.Ignore(os.Interrupt, syscall.SIGTERM)
	_, _ = io.Copy(io.Discard, os.Stdin) // ends when the parent does
	if err := removeHome(dir); err != nil {
		os.Exit(1)
	}
	os.Exit(0)
}

// Close ends all servers of this process and removes their files. The package can be used again
// afterwards. Close does nothing in a process that has started no server.
func Close() error {
	var failed []error
	shared.Lock()
	if shared.stop != nil {
		failed = append(failed, shared.stop())
	}
	shared.server, shared.stop, shared.err = nil, nil, nil
	shared.Unlock()
	homes.Lock()
	defer homes.Unlock()
	for root, h := range homes.in {
		failed = append(failed, removeHome(h.dir), h.lock.Close())
		if h.keeper != nil {
			failed = append(failed, h.keeper.Close())
		}
		delete(homes.in, root)
	}
	return errors.Join(failed...)
}

// root returns where homes are. Servers in memory are faster: a cluster has a thousand files.
func root(durable bool) string {
	const memory, space, free = "/dev/shm", 2 << 30, 4 << 30
	if durable || os.Getenv("TMPDIR") != "" || scarce(memory, space, free) {
		return os.TempDir()
	}
	return memory
}

// homeIn returns this process's home in a root.
func homeIn(root string) (*home, error) {
	homes.Lock()
	defer homes.Unlock()
	if h := homes.in[root]; h != nil {
		return h, nil
	}
	if !hooked.Load() {
		return nil, errNotHooked
	}
	sweep(root)
	lock, err := os.CreateTemp(root, homePrefix+"*"+lockSuffix)
	if err != nil {
		return nil, fmt.Errorf("testserver: %w", err)
	}
	h := &home{dir: strings.TrimSuffix(lock.Name(), lockSuffix), lock: lock, templates: make(map[string]string)}
	_, err = tryLock(lock)
	if err == nil {
		err = os.Mkdir(h.dir, 0o711) // the servers' account passes through
	}
	if err == nil {
		h.keeper, err = startKeeper(h.dir, lock)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("testserver: %w", err), removeHome(h.dir), lock.Close())
	}
	if homes.in == nil {
		homes.in = make(map[string]*home)
	}
	homes.in[root] = h
	return h, nil
}

// newDir returns the path of a directory that does not exist yet.
func (h *home) newDir() string { return filepath.Join(h.dir, strings.ToLower(rand.Text()[:8])) }

// Dir makes a directory for another program that this process starts, such as a peer's server in a
// benchmark. Close, or the keeper when this process ends without Close, kills every process that
// has the directory in its arguments, with the children of that process, and removes the directory.
func Dir() (string, error) {
	h, err := homeIn(root(true))
	if err != nil {
		return "", err
	}
	dir := h.newDir()
	if err := os.Mkdir(dir, 0o700); err != nil {
		return "", fmt.Errorf("testserver: %w", err)
	}
	return dir, nil
}

// removeHome ends everything that runs in a home and removes the home with its lock file.
func removeHome(dir string) error {
	failed := []error{crash(dir)}
	if name, err := os.ReadFile(filepath.Join(dir, containerFile)); err == nil {
		failed = append(failed, RemoveContainer(string(name)))
	}
	// A program that was just starting may have written a file meanwhile.
	remove := func() bool { return os.RemoveAll(dir) == nil }
	if !Poll(context.Background(), 5*time.Second, remove) {
		failed = append(failed, fmt.Errorf("testserver: can't remove %s", dir))
	}
	if err := os.Remove(dir + lockSuffix); err != nil && !os.IsNotExist(err) {
		failed = append(failed, err)
	}
	return errors.Join(failed...)
}

// sweep removes the homes of processes that were killed together with their keepers.
func sweep(root string) {
	locks, _ := filepath.Glob(filepath.Join(root, homePrefix+"*"+lockSuffix))
	for _, path := range locks {
		lock, err := os.OpenFile(path, os.O_RDWR, 0)
		if err != nil {
			continue // another user's
		}
		dir := strings.TrimSuffix(path, lockSuffix)
		_, noContainer := os.Stat(filepath.Join(dir, containerFile))
		if free, err := tryLock(lock); free && err == nil && (noContainer != nil || RemoveContainer != nil) {
			if err := removeHome(dir); err != nil {
				fmt.Fprintln(os.Stderr, err)
			}
		}
		lock.Close()
	}
}

// Poll calls done every few milliseconds until it returns true, and reports whether it did so
// before ctx ended and the time was over.
func Poll(ctx context.Context, within time.Duration, done func() bool) bool {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	tick := time.NewTicker(3 * time.Millisecond)
	defer tick.Stop()
	for !done() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return false
		}
	}
	return true
}
